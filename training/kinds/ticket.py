# ruff: noqa: E501
"""Support tickets: who has which trouble with what, and how urgent it is."""

from __future__ import annotations

from training.kinds.kind import Kind, Record
from training.lexicon import SOFTWARE_FORMS
from training.values import ValueSource
from training.wording import Wordings


def draw_software(source: ValueSource) -> str:
    """The name of a product that needs support."""

    def draw() -> str:
        name = f"{source.proper()}{source.rng.choice((' ', ' ', ''))}{source.rng.choice(SOFTWARE_FORMS)}"
        if source.chance(0.25):
            name += f" {source.rng.randint(2, 12)}"
        return name

    return source.fresh(draw)


def draw_error_code(source: ValueSource) -> str:
    """An error code as programs print it."""

    def draw() -> str:
        rng = source.rng
        return rng.choice(
            (f"E{source.digits(3)}", f"E-{source.digits(4)}", f"ERR{source.digits(2)}", f"ERR-{source.digits(3)}",
             f"0x{source.digits(2)}{rng.choice('ABCDEF')}{source.digits(1)}", f"HTTP {source.digits(3)}",
             f"{rng.choice('ABCDFKMX')}{source.digits(4)}", source.digits(4), f"SYS-{source.digits(2)}-{source.digits(2)}")
        )  # fmt: skip

    return source.fresh(draw)


def draw_ticket(source: ValueSource) -> tuple[Record, dict[str, str]]:
    """A ticket, in the order of its schema."""
    customer = source.person() if source.chance(0.7) else source.company()
    record: Record = {
        "id": source.code(("T", "TK", "SUP", "CASE", "REQ", "HD", "TICKET")),
        "customer": customer,
        "product": source.maybe(draw_software(source), 0.8),
        "category": source.rng.choice(("bug", "billing", "question", "access")),
        "priority": source.rng.choice(("low", "medium", "high", "urgent")),
        "opened": source.maybe(source.date(), 0.8),
        "error_code": source.maybe(draw_error_code(source), 0.5),
        "refund": source.chance(0.4),
    }
    return record, {"noise_person": source.person()}


TRAINING = Wordings(
    is_open=True,
    sentences=(
        "{customer} is waiting for an answer.",
        "We were called by {customer}.",
        "Help is needed by {customer}.",
        "{customer} filled in the form.",
        "The message was written by {customer}.",
        "A request by {customer}.",
        "{customer} is the one who asked.",
        "Trouble came up in {product}.",
        "{product} is in use there.",
        "While using {product} the trouble began.",
        "There are issues with {product}.",
        "The subject is {product}.",
        "Someone cannot work with {product}.",
        "It has been filed under {id}.",
        "{id} is the number of the case.",
        "This request is known as {id}.",
        "We call this case {id}.",
        "The date is {opened}.",
        "We heard of it on {opened}.",
        "{opened} was the day it reached us.",
        "Everything began on {opened}.",
        "{error_code} is what the screen says.",
        "There is a code: {error_code}.",
        "It prints {error_code}.",
        "The display reads {error_code}.",
        "<Ticket|Case|Request|Support ticket> {id} <was opened|was created|came in|was filed> by {customer}.",
        "{customer} <opened|created|filed|sent> <ticket|case|request> {id}.",
        "<The ticket number is|The case number is|Our reference is|This is ticket|It runs under> {id}.",
        "<Ticket|Case|Reference>: {id}.",
        "<Your request|Your ticket|The case> has the number {id}.",
        "<Please quote|Always mention> {id} <when you answer|in your reply>.",
        "<Ticket|Case> {id}, <opened|created> <on |>{opened}.",
        "{customer} <opened ticket|wrote about case> {id} on {opened}.",
        "<The customer is|The request comes from|It was reported by|The sender is|Reported by> {customer}.",
        "{customer} <writes|reports|called us|complains|contacted us|needs help>.",
        "<We got a message from|A call came from|A mail came from|We heard from> {customer}.",
        "{customer} <has trouble with|has a problem with|asks about|uses|writes about> {product}.",
        "<The name of the customer is|Customer:|From:> {customer}.",
        "{customer} <wrote|called|contacted us> on {opened}.",
        "<It concerns|It is about|The product is|The trouble is with|This is about> {product}.",
        "<Product|Affected product|Software>: {product}.",
        "{product} <does not behave|is affected|is the product in use|is what it is about|makes trouble>.",
        "<The customer uses|They use|They bought|They work with> {product}.",
        "<I am using|I use|I have|We run|We use> {product}.",
        "My name is {customer} and I <use|bought|work with> {product}.",
        "<It was opened on|It came in on|The ticket dates from|Opened on|Received on|It was filed on> {opened}.",
        "<Opened|Date|Received>: {opened}.",
        "<On|It started on> {opened} <the request reached us|the ticket was opened|the case was created>.",
        "Since {opened} <the ticket is open|we are on it|this is waiting>.",
        "<The error code is|The screen shows|The message reads|The log says|The program stops with> {error_code}.",
        "<Error code|Error|Code>: {error_code}.",
        "<Error|The error|Code> {error_code} <appears|is shown|comes up|pops up|was displayed>.",
        "{product} <stops with|shows|fails with|crashes with|reports> <error |code |error code |>{error_code}.",
        "<It fails with|It ends with|We see|I get|They see> <error |code |error code |the error >{error_code}.",
    ),
    states={
        "category": {
            "bug": (
                "The software has a bug.",
                "After the update the program crashes.",
                "A bug is the reason.",
                "Somebody found a bug.",
                "<It is|This is|Looks like|It must be> a bug.",
                "<The program|The app|It> <crashes|freezes|stops working|hangs> <all the time|every day|after the start|again and again>.",
                "<Category|Type|Kind>: bug.",
                "<Something is broken|It does not work|Nothing works any more>.",
                "<A bug|A fault|A defect> <was reported|is suspected>.",
                "Please fix <the bug|this bug>.",
                "<Filed|Sorted|Marked> as <a |>bug.",
                "The <button|window|screen> <does nothing|stays empty|stays white> <since the update|now>.",
            ),
            "billing": (
                "The trouble is the billing.",
                "The invoice lists a wrong sum.",
                "Billing is the reason.",
                "Somebody looked at the bill and is angry.",
                "<It is|This is> <about billing|a billing matter|a billing issue>.",
                "<The invoice|The bill> <is wrong|is too high|seems wrong|was sent twice>.",
                "<Category|Type|Kind>: billing.",
                "<The card|The account> was charged <twice|too much|by mistake>.",
                "<A billing problem|A wrong charge> <was reported|is the reason>.",
                "Please check <the bill|the charges|the billing>.",
                "<Filed|Sorted|Marked> <as|under> billing.",
                "There is a <mistake|problem> <on|with> the <invoice|bill|payment>.",
            ),
            "question": (
                "There is only a question.",
                "The user asks how to change a password.",
                "A question is the reason.",
                "Somebody wants to know more.",
                "<It is|This is> <just a question|a question|only a question>.",
                "<How can one|How do I|How does one|How can I> <export data|change the language|print a list|add a user>?",
                "<Category|Type|Kind>: question.",
                "<They want|The customer wants> to know how <it works|to export data|to change the language>.",
                "<A question|A how-to question> <was asked|came up>.",
                "Please <explain|tell us> how <it works|this is done>.",
                "<Filed|Sorted|Marked> as <a |>question.",
                "There is a question about <the manual|the settings|the features>.",
            ),
            "access": (
                "The trouble is the access.",
                "After the update the user cannot sign in.",
                "Missing access is the reason.",
                "Somebody has lost the password.",
                "<It is|This is> <about access|an access problem|an access issue>.",
                "<The customer|The user> <cannot log in|is locked out|forgot the password|has no access>.",
                "<Category|Type|Kind>: access.",
                "<The login|The password> <is rejected|does not work|is not accepted>.",
                "<An access problem|A login problem> <was reported|is the reason>.",
                "Please <reset the password|unlock the account|restore access>.",
                "<Filed|Sorted|Marked> <as|under> access.",
                "<Logging in|Signing in> <fails|is impossible|is not possible>.",
            ),
        },
        "priority": {
            "low": (
                "The priority is rather low.",
                "Low urgency.",
                "We can do this later.",
                "It does not have to be soon.",
                "<It is not urgent|There is no hurry|No rush|There is no rush>.",
                "<Priority|Urgency>: low.",
                "<The priority is|Priority is> low.",
                "<It can wait|This can wait|Take your time>.",
                "<Low priority|Of low priority>.",
                "Please handle it with low priority.",
                "<Whenever you have time|When you find the time> <is fine|is good enough>.",
            ),
            "medium": (
                "The priority is in the middle: medium.",
                "Medium urgency.",
                "We do this in the normal order.",
                "It does not have to be today, but soon.",
                "<Priority|Urgency>: medium.",
                "<The priority is|Priority is> medium.",
                "<Medium priority|Of medium priority>.",
                "Please handle it with medium priority.",
                "<It should be done|We need it> <this week|within the week|in the next days>.",
                "<It is of normal importance|The usual speed is fine|A normal pace is fine>.",
                "<Neither urgent nor unimportant|Not urgent, but not unimportant either>.",
            ),
            "high": (
                "The priority is rather high.",
                "High urgency.",
                "We should do this soon.",
                "It matters a lot.",
                "<Priority|Urgency>: high.",
                "<The priority is|Priority is> high.",
                "<High priority|Of high priority>.",
                "Please handle it with high priority.",
                "<It is important|It is very important|This is important>.",
                "<Please hurry|Please be quick|A quick answer is needed>.",
                "<We need it|It must be solved> <today|by tomorrow|soon>.",
            ),
            "urgent": (
                "The priority is the highest: urgent.",
                "Urgent urgency, please act.",
                "We must do this now.",
                "It has to be right now.",
                "<Priority|Urgency>: urgent.",
                "<The priority is|Priority is> urgent.",
                "<It is urgent|This is urgent|Very urgent|Urgent!>",
                "Please handle it <at once|immediately|right now>.",
                "<Everything stands still|All work has stopped|The whole team is blocked>.",
                "<It is an emergency|This is an emergency|Emergency!>",
                "<We need help|We need it|It must be solved> <at once|immediately|right now>.",
            ),
        },
        "refund": {
            "true": (
                "Money back, please.",
                "The customer expects a refund.",
                "We owe them a refund.",
                "They would like to get their money back.",
                "<The customer wants|They want|I want|We want> <a refund|the money back>.",
                "<A refund|A full refund> <is requested|was asked for|is wanted|is expected>.",
                "<Refund|Refund requested>: yes.",
                "<Please refund|Please pay back|Please return> <the amount|the money|everything>.",
                "<The customer asks|They ask|I ask> for <a refund|the money back>.",
                "<We demand|They demand> a refund.",
                "<The money should be|The sum should be> <returned|refunded|paid back>.",
            ),
            "false": (
                "No money back.",
                "The customer expects no refund.",
                "We owe them no refund.",
                "They would not like to get their money back.",
                "<The customer does not want|They do not want|I do not want|Nobody wants> <a refund|the money back>.",
                "A refund <is not requested|was not asked for|is not wanted|is not expected>.",
                "<Refund|Refund requested>: no.",
                "<A refund is not needed|No refund is needed|No refund is necessary>.",
                "<The customer does not ask|They do not ask> for <a refund|the money back>.",
                "<No refund was requested|No refund is wanted|No refund, please>.",
                "<They can keep the money|It is not about the money>, <no refund needed|a refund is not wanted>.",
            ),
        },
    },
    labels={
        "id": ("Ticket", "Case", "Ticket number", "ID", "Ticket ID", "Reference", "No.", "Request", "Case number"),
        "customer": ("Customer", "From", "Reported by", "Requester", "Client", "User", "Sender", "Name"),
        "product": ("Product", "Software", "App", "Affected product", "System", "Service", "About"),
        "category": ("Category", "Type", "Kind", "Topic", "Class", "Area"),
        "priority": ("Priority", "Urgency", "Prio", "Level", "Importance"),
        "opened": ("Opened", "Date", "Received", "Created", "Opened on", "Filed on", "Received on", "Since"),
        "error_code": ("Error", "Error code", "Code", "Message", "Error number", "Shown error"),
        "refund": ("Refund", "Refund requested", "Refund wanted", "Wants refund", "Money back"),
    },
    state_words={
        "category": {
            "bug": ("bug", "Bug", "bug report"),
            "billing": ("billing", "Billing", "billing issue"),
            "question": ("question", "Question", "general question"),
            "access": ("access", "Access", "login / access"),
        },
        "priority": {
            "low": ("low", "Low", "LOW"),
            "medium": ("medium", "Medium", "MEDIUM"),
            "high": ("high", "High", "HIGH"),
            "urgent": ("urgent", "Urgent", "URGENT"),
        },
        "refund": {"true": ("yes", "Yes", "true", "requested"), "false": ("no", "No", "false", "not requested")},
    },
    absences={
        "product": ("<The product|The name of the product> <was not named|is unknown|is missing>.",),
        "opened": ("<The date|The day> <was not noted|is unknown|is missing>.",),
        "error_code": (
            "<No error code|No error message|No code> <was shown|appears|is known>.",
            "There is no error code.",
            "<The screen stays empty|It fails without any message>.",
        ),
    },
    distractors=(
        "<The customer|The user> is friendly<| and patient>.",
        "<A restart|Restarting> did not help.",
        "<We tried|They tried> {~noise_count} times.",
        "{~noise_person} <took the call|is on the case|wrote this note>.",
        "<The licence|The contract> runs until {~noise_date}.",
        "<The first call|The phone call> lasted {~noise_minutes} minutes.",
        "<They have been|He has been|She has been> a customer since {~noise_year}.",
        "Please answer <by mail|by phone|in English>.",
        "<A screenshot|A photo|A log file> is attached.",
        "<The computer|The machine> is <new|rather old|in the office>.",
        "<The order number|The serial number> is {~noise_code}.",
        "<The update|The last update> was {~noise_count} days ago.",
        "Thanks for your <help|patience>.",
    ),
    titles=(
        "Support ticket",
        "Help desk",
        "Support request",
        "New ticket",
        "Service desk",
        "Customer message",
        "Ticket",
    ),
    openings=("Hello support,", "Dear team,", "Hi,", "Hello,", "Dear help desk,", "Good morning,"),
    closings=("Thanks", "Kind regards", "Best regards", "Thank you for your help", "Regards", "Many thanks"),
    nouns=("Ticket", "Case", "Request"),
)

HELD_OUT = Wordings(
    sentences=(
        "We keep track of this under {id}.",
        "The number {id} was given to this request.",
        "In our system you find it as ticket {id}.",
        "The person who asked for help is {customer}.",
        "On the line was {customer}.",
        "This message was sent to us by {customer}.",
        "What is affected is {product}.",
        "The problem occurs in {product}.",
        "They were working with {product} at the time.",
        "We took it in on {opened}.",
        "The message arrived on {opened}.",
        "Day of entry was {opened}.",
        "What one can read is {error_code}.",
        "The program gives the code {error_code}.",
        "In the window stands error {error_code}.",
    ),
    states={
        "category": {
            "bug": (
                "We think this is a bug.",
                "It has to do with a bug in the program.",
                "The app crashes when it is opened.",
            ),
            "billing": (
                "We think this is about billing.",
                "It has to do with the billing of last month.",
                "The bill shows a wrong amount.",
            ),
            "question": (
                "We think this is a simple question.",
                "It has to do with a question on the settings.",
                "How can the customer add a second user?",
            ),
            "access": (
                "We think this is about access.",
                "It has to do with access to the account.",
                "The user cannot log in any more.",
            ),
        },
        "priority": {
            "low": ("We gave it a low priority.", "There is really no hurry here.", "The urgency was set to low."),
            "medium": (
                "We gave it a medium priority.",
                "The usual pace is fine here.",
                "The urgency was set to medium.",
            ),
            "high": ("We gave it a high priority.", "This one is important to us.", "The urgency was set to high."),
            "urgent": (
                "We marked it as urgent.",
                "This is urgent, we need help at once.",
                "The urgency was set to urgent.",
            ),
        },
        "refund": {
            "true": (
                "The customer insists on a refund.",
                "We should give the money back.",
                "A refund was mentioned as the wish.",
            ),
            "false": (
                "The customer does not insist on a refund.",
                "We need not give the money back.",
                "A refund is not what the customer wants.",
            ),
        },
    },
    labels={
        "id": ("Ticket no.", "Support case"),
        "customer": ("Customer name", "Opened by"),
        "product": ("Product name", "Product affected"),
        "category": ("Ticket category", "Kind of issue"),
        "priority": ("Ticket priority", "Priority level"),
        "opened": ("Date opened", "Ticket date"),
        "error_code": ("Code shown", "Code of error"),
        "refund": ("Refund asked for", "Customer wants refund"),
    },
    state_words={
        "category": {
            "bug": ("BUG", "a bug"),
            "billing": ("BILLING", "on billing"),
            "question": ("QUESTION", "a question"),
            "access": ("ACCESS", "on access"),
        },
        "priority": {
            "low": ("rather low", "low priority"),
            "medium": ("rather medium", "medium priority"),
            "high": ("rather high", "high priority"),
            "urgent": ("very urgent", "urgent!"),
        },
        "refund": {"true": ("YES", "yes please"), "false": ("NO", "no thanks")},
    },
    absences={
        "product": ("Which product it is we were not told.",),
        "opened": ("When it was opened nobody wrote down.",),
        "error_code": ("The program gives no code at all.", "An error code is not shown."),
    },
    distractors=(
        "A colleague had the same experience.",
        "The chat had {~noise_count} messages.",
        "It was a quiet day at the desk.",
        "{~noise_person} will look into it.",
        "The office closes at noon.",
    ),
    titles=("Message to the support team", "From the help desk", "Service note"),
    openings=("Dear support team,", "Good afternoon,", "To the help desk:"),
    closings=("With best wishes", "Greetings", "Thank you in advance"),
    nouns=("Support case", "Help request"),
)

KIND = Kind(
    name="ticket",
    draw=draw_ticket,
    training=TRAINING,
    held_out=HELD_OUT,
    aliases={
        "id": ("ticket", "ticket_id", "case", "number", "reference", "ticket_number"),
        "customer": ("reporter", "requester", "client", "name", "user", "reported_by"),
        "product": ("software", "app", "affected_product", "service"),
        "category": ("type", "kind", "topic"),
        "priority": ("urgency", "level", "importance"),
        "opened": ("date", "created", "opened_on", "received"),
        "error_code": ("error", "code"),
        "refund": ("refund_requested", "wants_refund", "refund_wanted"),
    },
)
