# ruff: noqa: E501
"""Job adverts: who looks for whom, where, for how much, until when."""

from __future__ import annotations

from training.kinds.contact import draw_role
from training.kinds.kind import Kind, Record
from training.lexicon import SKILLS
from training.values import ValueSource
from training.wording import Wordings


def draw_job(source: ValueSource) -> tuple[Record, dict[str, str]]:
    """A job advert, in the order of its schema. A salary is a pair of bounds or nothing."""
    low = source.rng.randint(22, 120) * (1000 if source.chance(0.8) else 500)
    has_salary = source.chance(0.7)
    record: Record = {
        "title": draw_role(source),
        "company": source.company(),
        "city": source.maybe(source.city(), 0.8),
        "employment": source.rng.choice(("full-time", "part-time", "contract", "internship")),
        "salary_min": low if has_salary else None,
        "salary_max": low + source.rng.randint(2, 40) * 500 if has_salary else None,
        "skills": source.several(lambda: source.fresh(lambda: draw_skill(source)), 1, 4) if source.chance(0.85) else [],
        "remote": source.chance(0.5),
        "deadline": source.maybe(source.date(), 0.7),
    }
    return record, {"noise_person": source.person(), "noise_city": source.city()}


def draw_skill(source: ValueSource) -> str:
    """Something that an applicant should know.

    Most of what training draws is composed: the list is too short to learn from it that any words can be a skill.
    """
    if not source.reserved and source.chance(0.6):
        return source.rng.choice((source.phrase, source.phrase, source.phrase, source.proper, source.acronym))()
    if source.chance(0.75):
        return source.rng.choice(SKILLS)
    return (
        source.proper()
        if source.chance(0.6)
        else f"{source.word()} {source.rng.choice(('analysis', 'design', 'repair', 'testing', 'training'))}"
    )


TRAINING = Wordings(
    is_open=True,
    sentences=(
        "{company} offers a job as {title}.",
        "A new {title} should start soon.",
        "Are you a {title}?",
        "Our team is missing a {title}.",
        "{title} is what we are looking for.",
        "Who wants to be {title} at {company}?",
        "The advert was placed by {company}.",
        "{company} is where you will work.",
        "You will be employed by {company}.",
        "{city} is the location.",
        "You will find us in {city}.",
        "You can earn {salary_min} to {salary_max}.",
        "{salary_min} to {salary_max} is what we pay.",
        "Expect between {salary_min} and {salary_max}.",
        "From {salary_min} up to {salary_max} is possible.",
        "You have learned {skills}.",
        "{skills} should be no problem for you.",
        "We look for people with {skills}.",
        "If you know {skills}, you are the right person.",
        "{skills} are part of the daily work.",
        "Do not wait longer than {deadline}.",
        "{deadline} is the last chance.",
        "Send your papers by {deadline}.",
        "Until {deadline} we read every letter.",
        "{company} <is looking for|seeks|is hiring|wants to hire|searches for> <a |a new |an |>{title}.",
        "<We are looking for|We seek|We are hiring|Wanted:|We need|Now hiring:> <a |a new |an |>{title}.",
        "<Join|Work at|Come to|Become part of> {company} as <a |an |>{title}.",
        "{title} <wanted|needed|sought> <at|by> {company}.",
        "<The job title is|The position is|The role is|The vacancy is|Open position:> {title}.",
        "<Job|Position|Vacancy>: {title}.",
        "<We have an opening for|There is an opening for|Apply now as> <a |an |>{title}.",
        "As <a |an |our >{title} you will <work in a small team|meet many people|learn a lot|have your own projects>.",
        "{title}, {company}, {city}.",
        "{title} (m/f/d) <in|at our office in> {city}.",
        "<The employer is|The company is called|Your employer will be|We are> {company}.",
        "<Company|Employer>: {company}.",
        "{company} <is growing|offers a friendly team|is a family business|has an open position>.",
        "<About us:|Who we are:> {company} <is a young firm|has a long history|makes good things>.",
        "<At|Here at> {company} <you will find good colleagues|work is fun|we care about people>.",
        "{company} in {city} <is hiring|is looking for help|has a vacancy>.",
        "<The job is|The office is|The position is|You will work|The workplace is> in {city}.",
        "<City|Location|Place of work>: {city}.",
        "<Our office|Our team|Our shop> <is located|sits> in {city}.",
        "{city} <is the place of work|is where you will work|is where we are>.",
        "<The salary is|We pay|The pay is|You earn|The annual salary is> <between |from |>{salary_min} <to|and|up to> {salary_max}<| a year| per year| EUR| USD>.",
        "<Salary|Pay|Annual salary>: {salary_min} - {salary_max}.",
        "<Salary|Pay|Salary range>: {salary_min} to {salary_max}.",
        "<We offer|The range is|The salary range is> {salary_min} to {salary_max}<| a year| per year>.",
        "<The salary starts at|Pay starts at|You start at> {salary_min} and <goes up to|can reach|ends at> {salary_max}.",
        "<At least|No less than> {salary_min} and <at most|no more than> {salary_max} <a year|per year|are paid>.",
        "<You should know|You need|We ask for|We expect|Required skills are|You bring> {skills}.",
        "<Skills|Requirements|You know|Must have>: {skills}.",
        "<Experience in|Knowledge of|Good knowledge of|A background in> {skills} is <required|expected|needed|a must>.",
        "<Applicants should know|The ideal person knows|You are good at|You are skilled in> {skills}.",
        "<The tasks call for|The job requires|The work involves> {skills}.",
        "<Please apply|Apply|Send your application|Applications are welcome> <by|until|before|no later than> {deadline}.",
        "<The deadline is|The closing date is|Applications close on|The deadline for applications is> {deadline}.",
        "<Deadline|Apply by|Closing date>: {deadline}.",
        "<You can apply|We accept applications|The advert is open> until {deadline}.",
        "<On|After> {deadline} <applications close|it is too late to apply>.",
    ),
    states={
        "employment": {
            "full-time": (
                "The job is meant to be full-time.",
                "A full-time place.",
                "<It is|This is> a full-time <job|position|role>.",
                "<Employment|Type|Contract type|Hours>: full-time.",
                "<The job is|The position is|You work> full-time.",
                "You work <40|38|39> hours a week.",
                "<Full-time|Full time>.",
                "We offer <full-time work|a full-time contract>.",
            ),
            "part-time": (
                "The job is meant to be part-time.",
                "A part-time place.",
                "<It is|This is> a part-time <job|position|role>.",
                "<Employment|Type|Contract type|Hours>: part-time.",
                "<The job is|The position is|You work> part-time.",
                "You work <20|15|18|24> hours a week.",
                "<Part-time|Part time>.",
                "We offer <part-time work|half a position|two or three days a week>.",
            ),
            "contract": (
                "The job is meant to be a contract.",
                "A contract place.",
                "<It is|This is> a <contract|freelance> <job|position|role>.",
                "<Employment|Type|Contract type|Hours>: contract.",
                "<The job is|The position is|You work> <on a contract basis|freelance>.",
                "<The contract ends|The project ends> after <six|nine|twelve> months.",
                "<Contract|Contract work>.",
                "We offer <contract work|a freelance contract>.",
            ),
            "internship": (
                "The job is meant to be an internship.",
                "An internship place.",
                "<It is|This is> an internship.",
                "<Employment|Type|Contract type|Hours>: internship.",
                "<The job is|The position is> an internship.",
                "<Students|Interns> <are welcome|can gain first experience here>.",
                "<Internship|Internship for students>.",
                "We offer <an internship|a place for an intern>.",
            ),
        },
        "remote": {
            "true": (
                "Work where you like.",
                "You choose where you work.",
                "Most of us work from home.",
                "The office is optional.",
                "Home office is welcome on all days.",
                "You never have to come to the office.",
                "Remote work is normal for us.",
                "<Remote work|Working from home|Home office> is <possible|allowed|welcome|fine>.",
                "<Remote|Remote work>: yes.",
                "<You can|You may> <work from home|work remotely|work from anywhere>.",
                "<Fully remote|Remote possible|Remote-friendly|100 % remote>.",
                "<The job|The work> <can be done|is done> <remotely|from home>.",
                "We are a remote <team|company>.",
            ),
            "false": (
                "Work is done in the office.",
                "We want you in the office.",
                "Nobody here works from home.",
                "The office is where you work every day.",
                "Home office is not part of the deal.",
                "You always have to come to the office.",
                "Remote work is not normal for us.",
                "<Remote work|Working from home|Home office> is <not possible|not allowed|not offered>.",
                "<Remote|Remote work>: no.",
                "<You cannot|You may not> <work from home|work remotely|work from anywhere>.",
                "<On site only|No remote work|Not remote|Office only>.",
                "<The job|The work> <cannot be done|is not done> <remotely|from home>.",
                "We <work on site|meet in the office every day>.",
            ),
        },
    },
    labels={
        "title": ("Job", "Position", "Title", "Job title", "Role", "Vacancy", "We are hiring", "Opening"),
        "company": ("Company", "Employer", "Firm", "Who we are", "Organisation", "At", "Business"),
        "city": ("City", "Location", "Place", "Place of work", "Office", "Where", "Workplace"),
        "employment": ("Employment", "Type", "Contract type", "Hours", "Employment type", "Kind of job"),
        "salary": ("Salary", "Pay", "Annual salary", "Salary range", "Wage", "Compensation", "Pay range"),
        "skills": ("Skills", "Requirements", "You know", "Must have", "Profile", "Required skills", "What you bring"),
        "remote": ("Remote", "Remote work", "Home office", "Work from home", "Remote possible"),
        "deadline": ("Deadline", "Apply by", "Closing date", "Apply until", "Applications until", "Closes"),
    },
    state_words={
        "employment": {
            "full-time": ("full-time", "Full-time", "full time"),
            "part-time": ("part-time", "Part-time", "part time"),
            "contract": ("contract", "Contract", "freelance"),
            "internship": ("internship", "Internship", "intern"),
        },
        "remote": {"true": ("yes", "Yes", "possible", "true"), "false": ("no", "No", "not possible", "false")},
    },
    absences={
        "city": ("<The place of work|The city> <is open|is not fixed|will be agreed>.",),
        "salary_min": (
            "<The salary|The pay> <is negotiable|is open|will be agreed>.",
            "<We talk about money later|Salary by agreement>.",
        ),
        "skills": (
            "No <special skills|previous knowledge|experience> <are needed|is required>.",
            "Everybody can apply.",
        ),
        "deadline": (
            "There is no deadline.",
            "<You can apply|We accept applications> <at any time|all year>.",
            "<The deadline|The closing date> is <open|not fixed>.",
        ),
    },
    distractors=(
        "<We offer|There is> free <coffee|fruit|parking>.",
        "<Our team|The company> has {~noise_count} people.",
        "We were founded in {~noise_year}.",
        "{~noise_person} <answers your questions|looks forward to hearing from you|leads the team>.",
        "You have {~noise_count} days of <holiday|vacation> a year.",
        "<The interviews|The talks> last {~noise_minutes} minutes.",
        "<A second office|Another branch> is in {~noise_city}.",
        "<The advert|This page> was published on {~noise_date}.",
        "The reference of this advert is {~noise_code}.",
        "<We like|We value> <humour|openness|curiosity|good ideas>.",
        "<Dogs|Bicycles> are welcome in the office.",
        "We have <a canteen|a garden|a table tennis table>.",
    ),
    titles=("Job advert", "Vacancy", "We are hiring", "Jobs", "Careers", "Open position", "Join us"),
    openings=("Dear applicants,", "Hello,", "Dear job seekers,", "Hi there,", "Good news:"),
    closings=("We look forward to your application", "Apply now!", "Your HR team", "Kind regards", "See you soon"),
    nouns=("Job", "Vacancy", "Position"),
)

HELD_OUT = Wordings(
    sentences=(
        "We would love to welcome a {title} to our team.",
        "A place is free for a {title}.",
        "Do you see yourself as {title}?",
        "The free position is called {title}.",
        "{company} has a place to fill.",
        "The team at {company} needs support.",
        "This is an advert by {company}.",
        "You would be sitting in {city}.",
        "The desk stands in {city}.",
        "The work is waiting in {city}.",
        "The yearly pay lies between {salary_min} and {salary_max}.",
        "Depending on experience you get {salary_min} to {salary_max}.",
        "Our offer: from {salary_min} up to {salary_max} in a year.",
        "It helps if you know {skills}.",
        "What counts for us is {skills}.",
        "In your CV we would like to read {skills}.",
        "Your letter should reach us by {deadline}.",
        "The last day to apply is {deadline}.",
        "We collect applications until {deadline}.",
    ),
    states={
        "employment": {
            "full-time": ("The place is meant as a full-time job.", "You would work full-time with us."),
            "part-time": ("The place is meant as a part-time job.", "You would work part-time with us."),
            "contract": ("The place is meant as contract work.", "You would work on a contract with us."),
            "internship": ("The place is meant as an internship.", "You would do an internship with us."),
        },
        "remote": {
            "true": (
                "Your home can be your office.",
                "It is fine with us if you work from home.",
                "Remote work is part of our culture.",
            ),
            "false": (
                "Your home can not be your office.",
                "It is not fine with us if you work from home.",
                "Remote work is not part of our culture.",
            ),
        },
    },
    labels={
        "title": ("Name of position", "Open role"),
        "company": ("Company name", "Name of employer"),
        "city": ("Job location", "City of work"),
        "employment": ("Type of employment", "Job type"),
        "salary": ("Yearly salary", "Salary per year"),
        "skills": ("Skills needed", "You should know"),
        "remote": ("Remote allowed", "Can work remotely"),
        "deadline": ("Application deadline", "Last day to apply"),
    },
    state_words={
        "employment": {
            "full-time": ("FULL-TIME", "full-time job"),
            "part-time": ("PART-TIME", "part-time job"),
            "contract": ("CONTRACT", "contract job"),
            "internship": ("INTERNSHIP", "an internship"),
        },
        "remote": {"true": ("YES", "of course"), "false": ("NO", "sorry, no")},
    },
    absences={
        "city": ("Where you work we will find out together.",),
        "salary_min": ("What you earn we will find out together.",),
        "skills": ("You do not need to know anything special.",),
        "deadline": ("A deadline does not exist.", "Write to us whenever you like."),
    },
    distractors=(
        "The canteen serves soup on Fridays.",
        "{~noise_count} people have applied before.",
        "Our summer party is famous.",
        "The training in {~noise_city} is paid by us.",
        "{~noise_person} founded the firm.",
    ),
    titles=("New job", "Come and work with us", "Job offer"),
    openings=("Dear reader,", "Hello and welcome,", "To all who look for work:"),
    closings=("We are curious about you", "Until soon", "With best wishes"),
    nouns=("Open job", "New position"),
)

KIND = Kind(
    name="job",
    draw=draw_job,
    training=TRAINING,
    held_out=HELD_OUT,
    aliases={
        "title": ("job_title", "position", "role", "job"),
        "company": ("employer", "firm", "organisation"),
        "city": ("location", "place", "office"),
        "employment": ("employment_type", "type", "contract_type"),
        "salary_min": ("min_salary", "salary_from", "pay_min"),
        "salary_max": ("max_salary", "salary_to", "pay_max"),
        "skills": ("requirements", "required_skills", "must_have"),
        "remote": ("is_remote", "remote_possible", "home_office"),
        "deadline": ("apply_by", "closing_date", "application_deadline"),
    },
)
