# ruff: noqa: E501
"""Events: what happens when and where, who speaks, what it costs."""

from __future__ import annotations

from training.kinds.kind import Kind, Record
from training.lexicon import EVENT_FORMS, EVENT_THEMES, LAST_NAMES, VENUE_FORMS
from training.values import ValueSource
from training.wording import Wordings


def draw_title(source: ValueSource) -> str:
    """The name of an event."""

    def draw() -> str:
        choose = source.rng.choice
        theme = choose(EVENT_THEMES) if source.chance(0.7) else source.proper()
        kind = source.rng.random()
        if kind < 0.5:
            return f"{theme} {choose(EVENT_FORMS)}"
        if kind < 0.7:
            return f"{theme} {choose(EVENT_THEMES)} {choose(EVENT_FORMS)}"
        if kind < 0.85:
            return f"{theme} {choose(EVENT_FORMS)} {source.rng.randint(2019, 2029)}"
        return f"{choose(EVENT_FORMS)} of {theme}"

    return source.fresh(draw)


def draw_venue(source: ValueSource) -> str:
    """A building or a place."""

    def draw() -> str:
        name = source.proper() if source.chance(0.5) else source.rng.choice(LAST_NAMES + EVENT_THEMES)
        form = source.rng.choice(VENUE_FORMS)
        return f"{form} {name}" if source.chance(0.15) else f"{name} {form}"

    return source.fresh(draw)


def draw_event(source: ValueSource) -> tuple[Record, dict[str, str]]:
    """An event, in the order of its schema."""
    record: Record = {
        "title": draw_title(source),
        "date": source.date(),
        "start": source.maybe(source.time(), 0.75),
        "venue": source.maybe(draw_venue(source), 0.75),
        "city": source.maybe(source.city(), 0.8),
        "speakers": list(source.several(source.person, 1, 3)) if source.chance(0.7) else [],
        "price": source.amount(5, 900) if source.chance(0.65) else None,
        "registration": source.chance(0.5),
    }
    extras = {"currency": source.rng.choice(("EUR", "USD", "GBP", "CHF")), "noise_company": source.company()}
    return record, extras


TRAINING = Wordings(
    is_open=True,
    sentences=(
        "{title} is near.",
        "Come and see {title}.",
        "All about {title}.",
        "{title} is happening again.",
        "Nobody should miss {title}.",
        "The stage is set for {title}.",
        "On {date} the time has come.",
        "{date} is the day.",
        "The day to remember is {date}.",
        "We open on {date}.",
        "{start} is when it starts.",
        "We open the doors at {start}.",
        "The fun begins at {start}.",
        "Come before {start}.",
        "{venue} is the place.",
        "You find us at {venue}.",
        "We rented {venue}.",
        "Inside {venue} we have all we need.",
        "You find us in {city}.",
        "People travel to {city}.",
        "All of it is in {city}.",
        "{city} is the town.",
        "{speakers} are coming.",
        "There will be talks by {speakers}.",
        "{speakers} share their ideas.",
        "We look forward to {speakers}.",
        "{price} is the price.",
        "It costs {price} to get in.",
        "The entrance is {price}.",
        "Bring {price}.",
        "<The |>{title} <takes place|will take place|is held|happens> on {date}.",
        "<We invite you|You are invited|Come|Welcome> to <the |>{title}.",
        "<Join us|Meet us> <for|at> <the |>{title} on {date}.",
        "<Save the date|Mark your calendar>: {title}, {date}.",
        "<The event is called|The name of the event is|Our next event is|We present> {title}.",
        "{title} <is back|is coming up|opens its doors|returns>.",
        "<This year's|The next> event, {title}, <is open to everyone|will be special>.",
        "{title} in {city}, {date}.",
        "<The |>{title} <comes to|is held in|takes place in|visits> {city}.",
        "<The |>{title} <is held|takes place|will be> at {venue} in {city}.",
        "<It takes place on|It is held on|We meet on|The date is|It will be on> {date}.",
        "<Date|Day|When>: {date}.",
        "<The event is on|The doors open on|Everything happens on|The day is> {date}.",
        "<It starts|We start|The event starts|The programme begins|Doors open> at {start}.",
        "<Start|Begin|Beginning|Time>: {start}.",
        "<From|Starting at|Beginning at> {start} <there will be talks|guests are welcome|we are there for you>.",
        "<The start is at|The first talk is at|Be there at|Please come at> {start}.",
        "On {date} at {start} <we begin|the event starts|it starts|the doors open>.",
        "{date}, {start}, {venue}.",
        "<The venue is|The place is|We meet at|The location is|It takes place at> {venue}.",
        "<Venue|Where|Place>: {venue}.",
        "{venue} <hosts the event|is the venue|is where it happens|will be our home for the day>.",
        "<Guests gather|Everybody meets|The event is held> <at|in> {venue}.",
        "{venue} in {city} <hosts the event|is the venue|is the place to be>.",
        "<We meet at|Come to|The venue is> {venue}, {city}.",
        "<It takes place in|The city is|We meet in|It is held in|Travel to> {city}.",
        "<City|Town>: {city}.",
        "This <time|year> <we are|it is> in {city}.",
        "{city} <is the host city|welcomes all guests|hosts the event>.",
        "<Speakers are|The speakers are|On stage|With talks by|Talks by> {speakers}.",
        "<Speakers|Guests on stage|Talks>: {speakers}.",
        "{speakers} will <speak|talk|be on stage|give a talk>.",
        "<We are happy to welcome|Listen to|Hear|Meet> {speakers} <on stage|as speakers|on the podium>.",
        "<The programme features|The keynote comes from|A talk is given by> {speakers}.",
        "<Tickets cost|A ticket costs|The price is|Admission is|Entry costs|The fee is> {price}.",
        "<Price|Tickets|Admission|Entry fee>: {price}.",
        "<You pay|Guests pay|Each guest pays> {price}<| at the door| per person>.",
        "Tickets are <available for|sold at|on sale for> {price}.",
        "For {price} you <get a seat|can take part|are in>.",
    ),
    states={
        "registration": {
            "true": (
                "First register, then come.",
                "We only let in people who registered.",
                "Your name must be on our list.",
                "You cannot come without a registration.",
                "Register today.",
                "The registration is open and you need it.",
                "<Registration is required|Please register|You need to register|Registration is necessary>.",
                "<Please register|Please sign up> <online|in advance|on our website|by mail>.",
                "<Registration|Registration required>: yes.",
                "<Only|Entry only for> registered guests<| are let in>.",
                "<You must|You have to|Guests must|Everyone has to> <register|sign up> <beforehand|first|before the event>.",
                "<Without registration there is no entry|No entry without registration>.",
                "<A registration|Signing up> is <needed|mandatory|required>.",
                "<Seats are limited, so|Because seats are few,> <registration is required|please register>.",
                "<Do not forget|Remember> to <register|sign up>.",
            ),
            "false": (
                "You may come as you are, nobody registers.",
                "We let in everybody.",
                "There is no list of names.",
                "You can come without a registration.",
                "No one has to register.",
                "The door is open for all, no registration.",
                "<No registration is required|Registration is not required|No need to register|No registration needed>.",
                "<Just come|Simply come|Just drop in|Just walk in>.",
                "<Registration|Registration required>: no.",
                "<Everybody|Everyone> <can come|is welcome> without <registration|signing up>.",
                "<You do not have to|You don't need to|Guests need not> <register|sign up>.",
                "<Entry is possible without registration|Come without registration>.",
                "<A registration|Signing up> is <not needed|not required|not necessary>.",
                "<Drop by|Come by> <any time|as you like>, <no sign-up|no registration>.",
                "There is no <registration|sign-up>.",
            ),
        }
    },
    labels={
        "title": ("Event", "Title", "Name", "What", "Event name", "Programme", "Topic", "Name of event"),
        "date": ("Date", "When", "Day", "On", "Takes place on", "Event date"),
        "start": ("Start", "Time", "Begins", "Starts at", "From", "Doors", "Start time", "Beginning"),
        "venue": ("Venue", "Where", "Place", "Location", "Building", "Held at", "Hall"),
        "city": ("City", "Town", "In", "Host city", "Municipality"),
        "speakers": ("Speakers", "Speaker", "Talks by", "With", "On stage", "Guests", "Presenters"),
        "price": ("Price", "Tickets", "Ticket price", "Admission", "Entry", "Fee", "Cost"),
        "registration": ("Registration", "Registration required", "Sign-up required", "Registration needed"),
    },
    state_words={
        "registration": {"true": ("yes", "Yes", "required", "true"), "false": ("no", "No", "not required", "false")}
    },
    absences={
        "start": ("<The starting time|The time> <will be announced|is not fixed yet>.",),
        "venue": ("<The venue|The place> <will be announced|is not fixed yet|is still open>.",),
        "city": ("<The city|The town> <will be announced|is not known yet>.",),
        "speakers": (
            "<The speakers|The list of speakers> <will be announced|is not known yet|will follow>.",
            "There are no <speakers|talks>.",
        ),
        "price": (
            "<Admission is free|Entry is free|It is free of charge|It costs nothing>.",
            "<The price|The fee> <will be announced|is not fixed yet>.",
            "Tickets are free.",
        ),
    },
    distractors=(
        "<Coffee and cake|Drinks|Snacks|Lunch> will be served.",
        "<Last year|Last time> {~noise_count} guests came.",
        "<The event|The evening> is sponsored by {~noise_company}.",
        "There is <room|space> for {~noise_count} people.",
        "Parking is <free|available nearby|limited>.",
        "<The first edition|The series> started in {~noise_year}.",
        "Please bring <a pen|warm clothes|good shoes|a friend>.",
        "<Children|Dogs|Bicycles> are welcome.",
        "Photos will be taken.",
        "The programme was printed on {~noise_date}.",
        "<The nearest stop|The bus stop> is {~noise_count} minutes away.",
        "<Tell|Ask> your <friends|colleagues>.",
        "Lunch vouchers carry the code {~noise_code}.",
        "<The talks|The sessions> last {~noise_minutes} minutes.",
    ),
    titles=(
        "Invitation",
        "Event",
        "Announcement",
        "What's on",
        "Programme",
        "Save the date",
        "Event notice",
        "Newsletter",
    ),
    openings=("Dear friends,", "Hello,", "Dear members,", "Hi everyone,", "Dear guests,", "Good news:"),
    closings=("See you there!", "We look forward to seeing you", "Your team", "Kind regards", "Come along!"),
    nouns=("Event", "Invitation", "Date"),
)

HELD_OUT = Wordings(
    sentences=(
        "People will come together for {title}.",
        "It is time again for {title}.",
        "The organisers of {title} are looking forward to many guests.",
        "What awaits you is {title}.",
        "The calendar says {date}.",
        "Keep {date} free.",
        "The event falls on {date}.",
        "At {start} it all begins.",
        "The clock will show {start} when we open.",
        "Please be in your seat at {start}.",
        "The guests will find us at {venue}.",
        "Rooms were booked at {venue}.",
        "The address to go to is {venue}.",
        "The trip goes to {city}.",
        "The whole event happens in {city}.",
        "This edition was given to {city}.",
        "The microphone goes to {speakers}.",
        "Talks have been promised by {speakers}.",
        "You will hear {speakers}.",
        "A seat costs {price}.",
        "At the door we ask for {price}.",
        "The ticket price was set at {price}.",
    ),
    states={
        "registration": {
            "true": (
                "We ask all guests to register.",
                "A seat is only given to those who register.",
                "It is required that you sign up.",
                "Please fill in the registration form before you come.",
            ),
            "false": (
                "We ask nobody to register.",
                "A seat is given to all, no registration needed.",
                "It is not required that you sign up.",
                "You can come without any registration form.",
            ),
        }
    },
    labels={
        "title": ("Event title", "Our event"),
        "date": ("Date of event", "Held on"),
        "start": ("Starting time", "Event starts"),
        "venue": ("Venue name", "Event location"),
        "city": ("City of event", "Event city"),
        "speakers": ("Invited speakers", "People on stage"),
        "price": ("Price of ticket", "Cost of entry"),
        "registration": ("Must register", "Registration necessary"),
    },
    state_words={"registration": {"true": ("YES", "yes please"), "false": ("NO", "no need")}},
    absences={
        "start": ("At what time it begins we will tell you later.",),
        "venue": ("Where exactly we meet we will tell you later.",),
        "city": ("Which city it will be we will tell you later.",),
        "speakers": ("Who speaks we will tell you later.",),
        "price": ("You do not have to pay anything.", "There is no entry fee."),
    },
    distractors=(
        "The weather does not matter.",
        "Around {~noise_count} helpers are on duty.",
        "The band plays until late.",
        "A similar evening drew a crowd in {~noise_year}.",
        "The bar is run by {~noise_company}.",
    ),
    titles=("Coming soon", "An invitation to you", "Event calendar"),
    openings=("Dear neighbours,", "Hello to all,", "Dear readers,"),
    closings=("We are glad to have you", "Until then", "With best wishes"),
    nouns=("Next event", "Our invitation"),
)

KIND = Kind(
    name="event",
    draw=draw_event,
    training=TRAINING,
    held_out=HELD_OUT,
    aliases={
        "title": ("name", "event", "event_name", "event_title"),
        "date": ("day", "event_date", "when"),
        "start": ("start_time", "time", "begins"),
        "venue": ("place", "location", "where", "hall"),
        "city": ("town", "host_city"),
        "speakers": ("talks_by", "presenters", "guests"),
        "price": ("ticket_price", "fee", "admission", "cost"),
        "registration": ("registration_required", "must_register", "signup_required"),
    },
    money=("price",),
)
