# ruff: noqa: E501
"""Contacts: who somebody is, where they work, how to reach them."""

from __future__ import annotations

from training.kinds.kind import Kind, Record
from training.lexicon import JOB_AREAS, JOB_ROLES, SENIORITIES, SINGLE_JOBS
from training.values import ValueSource
from training.wording import Wordings


def draw_role(source: ValueSource) -> str:
    """A position such as "senior data analyst"."""

    def draw() -> str:
        kind = source.rng.random()
        if kind < 0.25:
            role = source.rng.choice(SINGLE_JOBS)
        else:
            role = f"{source.rng.choice(JOB_AREAS)} {source.rng.choice(JOB_ROLES)}"
        if source.chance(0.3):
            role = f"{source.rng.choice(SENIORITIES)} {role}"
        if source.chance(0.08):
            role = f"head of {source.rng.choice(JOB_AREAS)}"
        return role.title() if source.chance(0.4) else role

    return source.fresh(draw)


def draw_contact(source: ValueSource) -> tuple[Record, dict[str, str]]:
    """A person with what is known about them."""
    name = source.person()
    record: Record = {
        "name": name,
        "company": source.maybe(source.company(), 0.8),
        "role": source.maybe(draw_role(source), 0.75),
        "email": source.maybe(source.email(name), 0.8),
        "phone": source.maybe(source.phone(), 0.75),
        "city": source.maybe(source.city(), 0.75),
        "newsletter": source.chance(0.5),
    }
    extras = {"first": name.split(" ")[0], "noise_city": source.city(), "noise_person": source.person()}
    return record, extras


TRAINING = Wordings(
    is_open=True,
    sentences=(
        "{name} introduced <himself|herself> at our booth.",
        "This is the card of {name}.",
        "We have a new contact called {name}.",
        "{name} came to see us <today|last Friday>.",
        "It was nice to meet {name}.",
        "Call {name} back.",
        "A message from {name}.",
        "On the phone: {name}, {company}.",
        "A letter came from {name} of {company}.",
        "{~first} is paid by {company}.",
        "{company} sent {~first} to the fair.",
        "{company} is the name of the firm.",
        "Professionally {~first} is {role}.",
        "{~first} introduced <herself|himself> as {role}.",
        "{~first} has a job as {role}.",
        "{role} is what it says on the door.",
        "An e-mail to {email} <will do|is enough|works best>.",
        "{email} is where <mails|messages> <go|arrive>.",
        "<Letters|Offers> may be sent to {email}.",
        "{phone} is the number.",
        "Text or call {phone}.",
        "<Somebody|She|He> answers at {phone}.",
        "You meet {~first} in {city}.",
        "The <company|firm> sits in {city}.",
        "{~first} has an office in {city}.",
        "{city} is home to {~first}.",
        "{name} <works|is employed|is> at {company}.",
        "{name} is the {role} at {company}.",
        "{name} works <as|as a|as the> {role} <for|at> {company}.",
        "{name} is <a|our|the new|the> {role}.",
        "{name}, {role} at {company}, <asked us to call back|would like to hear from us|visited our stand>.",
        "{name} ({company}) <stopped by|gave me a card|called this morning>.",
        "{name} of {company} <wrote to us|is interested|wants an offer>.",
        "<Yesterday|Today|Last week|This morning> I <met|spoke with|talked to|had lunch with> {name} <from|of> {company}.",
        "<Please add|Please save|New contact:|Add> {name} <to the list|to our contacts|to the address book>.",
        "I <met|spoke with|talked to> {name} <yesterday|on the train|at the fair|after the talk>.",
        "The <contact person|person in charge|right person to ask> is {name}.",
        "<My|Her|His|Their> name is {name}.",
        "My name is {name} and I work <for|at> {company}.",
        "I am {name}, {role} at {company}.",
        "I am {name} <and I live in|from> {city}.",
        "{~first} <works for|is with|joined|represents> {company}.",
        "<The employer is|The firm is called|The company is> {company}.",
        "<Employer|Company>: {company}.",
        "{company} <is the employer|is where {~first} works|employs {~first}>.",
        "<Her|His|The> <job title|position|role> <there |>is {role}.",
        "{~first} <works as|is|serves as|is employed as> {role}.",
        "{~first} <has been|became> {role} <there|since last year|in spring>.",
        "<The|His|Her> <e-mail address|email|email address|mail address> is {email}.",
        "<You can write to|Please write to|Send mail to|Messages go to|Write to> {email}.",
        "<You can reach|You reach|Reach|Contact> {~first} <at|under|by mail at|via> {email}.",
        "E-mail: {email}.",
        "{~first} <answers mails sent to|reads|prefers mail to> {email}.",
        "<You can call|Call|Ring|Please call> {~first} <on|at> {phone}.",
        "<The|His|Her> <phone number|telephone number|number|mobile number> is {phone}.",
        "<Phone|Tel.|Mobile>: {phone}.",
        "<By phone|By telephone>: {phone}.",
        "{~first} <picks up|can be called|is reachable> <on|at|under> {phone}.",
        "<Reach {~first} at|Contact details:> {email} or {phone}.",
        "<The number to call is|For calls use|Dial> {phone}.",
        "For calls use {phone} and for mail use {email}.",
        "{~first} <lives|is based|is located|sits> in {city}.",
        "<The office is|Her office is|His office is|The desk is> in {city}.",
        "{~first} <comes from|works from|moved to> {city}.",
        "<Based in|Located in|Living in> {city}.",
        "{company} <has its office|is based|has its seat> in {city}.",
        "{name} <lives|is based> in {city} and works for {company}.",
        "{name} from {city} <called|wrote|came by>.",
        "{name} - {role}, {company}, {city}.",
        "{name}, {email}, {phone}.",
        "<As|In the position of> {role}, {~first} <decides on purchases|leads a small team|travels a lot>.",
        "<Use|Take> {phone} <for urgent matters|during office hours|in the afternoon>.",
    ),
    states={
        "newsletter": {
            "true": (
                "{~first} is glad to get the newsletter.",
                "Newsletter? With pleasure.",
                "The newsletter can be sent to {~first}.",
                "Interested in the newsletter.",
                "Put {~first} down for the newsletter.",
                "{~first} hopes to get our newsletter soon.",
                "Keep the newsletter coming.",
                "The newsletter was ordered.",
                "{~first} <wants|would like|asked> to <get|receive|subscribe to> the newsletter.",
                "<Please add|Add> {~first} to the newsletter<| list>.",
                "<Newsletter|Newsletter wanted>: yes.",
                "{~first} <subscribed to|signed up for|ordered> <our|the> newsletter.",
                "The newsletter <is welcome|is wanted|should be sent>.",
                "{~first} <agreed to|said yes to> the newsletter.",
                "<Please send|Send> <them |{~first} |>the <monthly |weekly |>newsletter.",
                "{~first} is <on the newsletter list|a newsletter subscriber>.",
                "I would <like|love> to <get|receive> your newsletter.",
                "<Subscribed|Opted in> to the newsletter.",
                "The newsletter box <was ticked|is checked>.",
                "{~first} reads our newsletter <with interest|every month> and <wants to keep it|stays subscribed>.",
            ),
            "false": (
                "{~first} has no use for the newsletter.",
                "Newsletter? No thank you.",
                "The newsletter cannot be sent to {~first}.",
                "Not interested in the newsletter.",
                "Leave {~first} off the newsletter.",
                "{~first} gets too much mail already, so no newsletter.",
                "Stop the newsletter.",
                "The newsletter was never ordered.",
                "{~first} <does not want|doesn't want|declined|refused> the newsletter.",
                "<No newsletter|No newsletter please|Please no newsletter>.",
                "<Newsletter|Newsletter wanted>: no.",
                "{~first} <unsubscribed from|opted out of|cancelled> <our|the> newsletter.",
                "The newsletter <is not wanted|should not be sent>.",
                "{~first} <said no to|is not interested in> the newsletter.",
                "<Do not send|Don't send|Never send> <them |{~first} |>the <monthly |weekly |>newsletter.",
                "{~first} is not <on the newsletter list|a newsletter subscriber>.",
                "I do not <want|wish> to <get|receive> your newsletter.",
                "<Not subscribed to|Opted out of> the newsletter.",
                "The newsletter box <was left empty|is not checked>.",
                "Please <remove|take> {~first} <from|off> the newsletter list.",
            ),
        }
    },
    labels={
        "name": ("Name", "Full name", "Contact", "Contact person", "Person", "Who", "Customer name", "Attendee"),
        "company": ("Company", "Employer", "Organisation", "Organization", "Firm", "Works at", "Business", "Workplace"),
        "role": ("Role", "Position", "Job title", "Title", "Job", "Function", "Occupation"),
        "email": ("Email", "E-mail", "Mail", "Email address", "E-Mail", "Mail address"),
        "phone": ("Phone", "Tel", "Tel.", "Telephone", "Mobile", "Phone number", "Call", "Cell"),
        "city": ("City", "Location", "Town", "Based in", "Place", "Lives in", "Office in"),
        "newsletter": ("Newsletter", "Newsletter wanted", "Subscribed to newsletter", "Receives newsletter"),
    },
    state_words={"newsletter": {"true": ("yes", "Yes", "true", "x", "on"), "false": ("no", "No", "false", "off")}},
    absences={
        "company": ("{~first} <is self-employed|has no employer at the moment>.", "No company was <named|given>."),
        "role": ("<The job title is unknown|I did not catch the job title>.", "No position was <named|given>."),
        "email": (
            "{~first} <gave no e-mail address|has no email>.",
            "No email was <given|left>.",
            "<The e-mail address is missing|We have no mail address>.",
        ),
        "phone": (
            "{~first} <left no phone number|prefers not to be called>.",
            "No phone number was <given|left>.",
            "<The number is missing|We have no telephone number>.",
        ),
        "city": ("<The city is unknown|No address was given>.", "I do not know where {~first} lives."),
    },
    distractors=(
        "We talked <about the weather|for an hour|about football|about old times>.",
        "The coffee was <good|cold|excellent>.",
        "<The meeting|The talk|Our chat> lasted {~noise_minutes} minutes.",
        "I will <call back|write again> next week.",
        "<The card|This note> was <scanned|written> on {~noise_date}.",
        "There were {~noise_count} people <in the room|at the table|at the stand>.",
        "Please <file this|keep this> with the other <notes|cards>.",
        "A brochure was <handed over|sent by post>.",
        "{~first} likes <hiking|chess|jazz|long walks> and has <two dogs|a cat|three children>.",
        "The next fair is in <spring|autumn|May>.",
        "<We first met|They met> in {~noise_year}.",
        "The parking lot was full.",
        "Ticket {~noise_code} was closed <before|in the meantime>.",
    ),
    titles=(
        "Contact",
        "Business card",
        "New contact",
        "Contact details",
        "Address book entry",
        "Visitor card",
        "Contact form",
    ),
    openings=("Hello,", "Hi all,", "Dear team,", "Hi,", "Good morning,", "Note to self:", "FYI:", "Hello everyone,"),
    closings=("Best regards", "Thanks", "Thank you!", "Cheers", "Kind regards", "See you soon", "All the best"),
    nouns=("Contact", "Person", "Card", "Visitor"),
)

HELD_OUT = Wordings(
    sentences=(
        "We were approached by {name}.",
        "A visit from {name} of {company} is worth recording here.",
        "{name} handed me a card that says {role} at {company}.",
        "Got to know {name} during the break.",
        "The caller introduced herself as {name}.",
        "On the badge I could read {name}, {company}.",
        "{~first} earns a living at {company}.",
        "The badge shows {company} as the organisation.",
        "{~first} is part of the team at {company}.",
        "The card gives {role} as the position.",
        "{~first} holds the post of {role}.",
        "In daily life {~first} is busy as {role}.",
        "Mail is best addressed to {email}.",
        "The address for electronic mail reads {email}.",
        "Drop {~first} a line at {email}.",
        "Anything in writing should go to {email}.",
        "For a conversation, pick up the phone and dial {phone}.",
        "The telephone rings under {phone}.",
        "If it is urgent, phone {phone}.",
        "The mobile is {phone}.",
        "Home is {city}.",
        "{~first} can be found in {city} most of the time.",
        "The place of work is {city}.",
    ),
    states={
        "newsletter": {
            "true": (
                "{~first} would be happy about our newsletter.",
                "Please put this address on the list for the newsletter.",
                "The newsletter should go to {~first} as well.",
                "A yes to the newsletter was noted.",
            ),
            "false": (
                "{~first} would rather not have the newsletter.",
                "Please keep this address off the list for the newsletter.",
                "The newsletter must not go to {~first}.",
                "A no to the newsletter was noted.",
            ),
        }
    },
    labels={
        "name": ("Name of contact", "First and last name"),
        "company": ("Name of company", "Employed at"),
        "role": ("Current position", "Working as"),
        "email": ("Contact email", "E-mail to"),
        "phone": ("Contact phone", "Telephone no."),
        "city": ("Home town", "City of residence"),
        "newsletter": ("Wants newsletter", "Newsletter subscription"),
    },
    state_words={"newsletter": {"true": ("yes please", "YES"), "false": ("no thanks", "NO")}},
    absences={
        "company": ("{~first} did not mention a company.",),
        "role": ("What the job is called we do not know.",),
        "email": ("An e-mail address is not on file.",),
        "phone": ("There is no telephone on record.",),
        "city": ("Where the office is remains open.",),
    },
    distractors=(
        "It rained the whole afternoon.",
        "Around {~noise_count} guests were there.",
        "The buffet closed early.",
        "We should send a calendar at the end of the year.",
        "This entry dates from {~noise_date}.",
        "The slides will be shared later.",
    ),
    titles=("Notes on a contact", "Entry for the directory", "People we met"),
    openings=("Dear all,", "A short note:", "Hello colleagues,"),
    closings=("With best wishes", "Many thanks", "Until soon"),
    nouns=("New person", "Directory entry"),
)

KIND = Kind(
    name="contact",
    draw=draw_contact,
    training=TRAINING,
    held_out=HELD_OUT,
    aliases={
        "name": ("full_name", "person", "contact", "contact_name", "customer"),
        "company": ("employer", "organisation", "organization", "firm", "company_name"),
        "role": ("position", "job_title", "job", "title", "occupation"),
        "email": ("mail", "email_address", "e_mail"),
        "phone": ("telephone", "phone_number", "tel", "mobile"),
        "city": ("location", "town", "place"),
        "newsletter": ("wants_newsletter", "subscribed", "newsletter_wanted"),
    },
)
