"""Ten schemas as users write them for their own data, none of which the bundled model was trained on, with documents.

Five are JSON Schemas and five are Pydantic models: lists in lists, optional fields, enumerations, dates, patterns, and
strings and lists without bounds, since that is how they come. `SCHEMAS` maps a name to a schema or type,
`DOCUMENTS` the same name to ten short texts that hold what the schema asks for.
"""

from __future__ import annotations

import datetime
import enum
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field

FLIGHTS: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "passenger": {"type": "string"},
        "booking": {"type": "string", "pattern": "^[A-Z0-9]{6}$"},
        "flights": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "properties": {
                    "number": {"type": "string", "pattern": "^[A-Z]{2}[0-9]{1,4}$"},
                    "from": {"type": "string", "pattern": "^[A-Z]{3}$"},
                    "to": {"type": "string", "pattern": "^[A-Z]{3}$"},
                    "date": {"type": "string", "format": "date"},
                    "seat": {"type": ["string", "null"]},
                },
                "required": ["number", "from", "to", "date"],
            },
        },
        "class": {"enum": ["economy", "premium", "business", "first"]},
    },
    "required": ["passenger", "flights", "class"],
}

TIMETABLE: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "line": {"type": "string"},
        "kind": {"enum": ["bus", "tram", "train", "ferry"]},
        "days": {
            "type": "array",
            "items": {"enum": ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]},
            "uniqueItems": True,
        },
        "stops": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "minLength": 1},
                    "times": {
                        "type": "array",
                        "items": {"type": "string", "pattern": "^([01][0-9]|2[0-3]):[0-5][0-9]$"},
                    },
                },
                "required": ["name", "times"],
                "additionalProperties": False,
            },
        },
    },
    "required": ["line", "kind", "stops"],
    "additionalProperties": False,
}

PEOPLE: Final[dict[str, Any]] = {
    "$defs": {
        "address": {
            "type": "object",
            "properties": {
                "street": {"type": "string"},
                "city": {"type": "string"},
                "postcode": {"type": "string", "pattern": "^[0-9]{5}$"},
            },
            "required": ["city"],
            "additionalProperties": False,
        }
    },
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "born": {"type": "string", "format": "date"},
        "email": {"type": "string", "format": "email"},
        "languages": {"type": "array", "items": {"type": "string"}},
        "address": {"anyOf": [{"$ref": "#/$defs/address"}, {"type": "null"}]},
        "children": {"type": "integer", "minimum": 0, "maximum": 20},
    },
    "required": ["name", "born", "languages"],
    "additionalProperties": False,
}

ORDERS: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "order": {"type": "string", "pattern": "^[A-Z]-[0-9]{4}$"},
        "customer": {"type": "string"},
        "ordered": {"type": "string", "format": "date"},
        "status": {"enum": ["open", "paid", "sent", "returned"]},
        "items": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "properties": {
                    "article": {"type": "string"},
                    "quantity": {"type": "integer", "minimum": 1, "maximum": 999},
                    "price": {"type": "number", "minimum": 0, "multipleOf": 0.01, "maximum": 100000},
                },
                "required": ["article", "quantity", "price"],
            },
        },
        "payment": {
            "oneOf": [
                {
                    "type": "object",
                    "properties": {
                        "method": {"const": "card"},
                        "last_digits": {"type": "string", "pattern": "^[0-9]{4}$"},
                    },
                    "required": ["method", "last_digits"],
                },
                {"type": "object", "properties": {"method": {"const": "invoice"}}, "required": ["method"]},
            ]
        },
    },
    "required": ["order", "customer", "ordered", "status", "items"],
}

WEATHER: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "station": {"type": "string"},
        "date": {"type": "string", "format": "date"},
        "unit": {"enum": ["C", "F"]},
        "days": {
            "type": "array",
            "items": {"type": "array", "items": {"type": "integer", "minimum": -80, "maximum": 140}, "maxItems": 24},
        },
        "wind": {"enum": ["calm", "breeze", "gale", "storm", None]},
        "rain": {"type": "boolean"},
    },
    "required": ["station", "date", "unit", "days", "rain"],
    "additionalProperties": False,
}


class Ingredient(BaseModel):
    """One line of a list of ingredients."""

    name: str
    amount: str
    optional: bool = False


class Recipe(BaseModel):
    """A recipe."""

    title: str
    servings: int
    minutes: int | None = None
    difficulty: Literal["easy", "medium", "hard"]
    vegetarian: Literal["yes", "no"]
    ingredients: list[Ingredient]
    steps: list[str]


class Genre(enum.Enum):
    """What a book is."""

    NOVEL = "novel"
    POETRY = "poetry"
    SCIENCE = "science"
    CHILDREN = "children's book"


class Loan(BaseModel):
    """A book that somebody has borrowed."""

    member: Annotated[str, Field(pattern="^M[0-9]{4}$")]
    title: str
    authors: list[str]
    genre: Genre
    borrowed: datetime.date
    due: datetime.date
    renewed: int | None = None


class Speaker(BaseModel):
    """Who speaks."""

    name: str
    affiliation: str | None = None


class Talk(BaseModel):
    """One talk of a meeting."""

    title: str
    speakers: list[Speaker]
    room: Annotated[str, Field(pattern="^[A-D][1-9][0-9]{0,2}$")]


class Meeting(BaseModel):
    """A meeting with its talks."""

    name: str
    city: str
    starts: datetime.date
    online: bool
    talks: list[Talk]


class Player(BaseModel):
    """A player."""

    name: str
    country: Annotated[str, Field(pattern="^[A-Z]{3}$")]


class Match(BaseModel):
    """A match of tennis: the sets are pairs of games."""

    players: Annotated[list[Player], Field(min_length=2, max_length=2)]
    surface: Literal["clay", "grass", "hard"]
    sets: Annotated[
        list[tuple[Annotated[int, Field(ge=0, le=20)], Annotated[int, Field(ge=0, le=20)]]], Field(max_length=5)
    ]
    played: datetime.date
    retired: bool = False


class Answer(BaseModel):
    """The answer to one question."""

    question: Annotated[int, Field(ge=1, le=99)]
    choice: Literal["yes", "no", "unsure"]
    comment: str | None = None


class Survey(BaseModel):
    """What somebody answered."""

    respondent: str
    age: Annotated[int, Field(ge=0, le=120)] | None
    date: datetime.date
    answers: list[Answer]
    tags: list[Literal["new", "returning", "student", "retired"]] = []


SCHEMAS: Final[dict[str, Any]] = {
    "flights": FLIGHTS,
    "timetable": TIMETABLE,
    "people": PEOPLE,
    "orders": ORDERS,
    "weather": WEATHER,
    "recipe": Recipe,
    "loan": Loan,
    "meeting": Meeting,
    "match": Match,
    "survey": Survey,
}
"""A schema, or a type, by name."""

DOCUMENTS: Final[dict[str, tuple[str, ...]]] = {
    "flights": (
        "Anna Berger flies LH400 from FRA to JFK on 2025-03-04, economy, seat 14C. Booking K7XQ2P.",
        "Booking 8HHD3A for Omar Haddad, business class: EK5 DXB to LHR 2025-05-12, EK8 LHR to DXB 2025-05-19.",
        "Passenger: Li Wei. CA907 PEK-MAD, 2025-09-30, first class, seat 1A.",
        "Ticket of Maria Rossi in premium: AZ610 FCO to JFK 2025-06-01; AZ611 JFK to FCO 2025-06-15.",
        "Jonas Lind, economy, SK537 from ARN to DUB, 2024-12-23, no seat chosen, reference QW12ER.",
        "Grace Okafor travels economy with KQ101 NBO to LHR on 2025-01-17, then BA117 LHR to JFK the day after.",
        "Economy ticket of Pedro Alves: TP1320, LIS to PRG, 2025-07-08, seat 22F.",
        "Yuki Tanaka, business. NH7 SFO-HND on 2 February 2026. Booking AB12CD. Seat 3K.",
        "First class for Elena Petrova on SU100 SVO to LAX, 2021-10-10.",
        "Tom Baker: U28001 is an easy hop, LGW to AMS, 2025-04-22, economy.",
    ),
    "timetable": (
        "Tram 12, Monday to Friday. Market Square 07:05, 07:25, 07:45. Station 07:15, 07:35, 07:55.",
        "Ferry F2 leaves Old Harbour at 09:00 and 14:30 and reaches Gull Island at 09:40 and 15:10. Sat and Sun only.",
        "Bus 84: Hill Road 06:10, School 06:22, Hospital 06:31. Weekdays.",
        "The train RE5 stops at Koblenz 10:02, Bonn 10:36, Köln 11:01.",
        "Line N3 (bus), Friday and Saturday nights: Central 23:30, 00:30; Airport 23:58, 00:58.",
        "Tram 4. Opera 08:00. Zoo 08:14. Daily.",
        "Bus X1, Sundays: Church 10:00, Lake 10:35, Forest 10:50.",
        "Train S7: Westkreuz 05:44 05:54 06:04; Ostbahnhof 06:06 06:16 06:26.",
        "Ferry Aurora: Turku 20:55, Mariehamn 01:10, Stockholm 06:30.",
        "Bus 300 runs Tue and Thu. Depot 12:00, Library 12:09.",
    ),
    "people": (
        "Clara Schmidt, born 1984-02-29, speaks German and French. Lindenweg 3, 50667 Köln. Two children.",
        "Name: John Smith. Date of birth: 1990-11-05. Languages: English. john.smith@example.org",
        "Fatima Zahra was born on 3 April 1975, speaks Arabic, French and Spanish, and lives in Rabat.",
        "Ivan Novak (1962-07-19), Czech and Russian, ivan@novak.example, no children, Hlavni 12, 11000 Praha.",
        "Aiko Mori, 2001-01-01. Japanese, English.",
        "Our new colleague Peter Olsen was born on 1979-12-12. He speaks Danish. Mail: p.olsen@example.dk.",
        "Lucia Gomez; born 1998-08-08; Spanish, Catalan, English; Calle Mayor 5, 28013 Madrid; one child.",
        "Samuel Adeyemi, Yoruba and English, born 1955-05-25, five children, lives in Ibadan.",
        "Nora Hansen. 1989-03-17. Norwegian, Sami.",
        "Born 1970-10-02: Marc Dubois, Lyon 69001, rue Neuve 8. French, Italian.",
    ),
    "orders": (
        "Order A-1001 by Helga Meyer, 2025-02-03, paid: 2 lamps at 19.90, 1 table at 149.00. Card ending 4242.",
        "B-2002 for Studio Nord, ordered 2025-02-04, open. 10 notebooks at 2.50 each, by invoice.",
        "Customer Ana Costa ordered C-0007 on 2024-12-24: one teapot, 35.00. It was sent. Card 0005.",
        "Order D-4410, returned. Customer: Kim Lee. Date 2025-01-15. 1 jacket 89.95.",
        "E-5005, sent, Bakery Roth, 2025-03-01: flour 20 at 0.89, sugar 5 at 1.19.",
        "Paul Green bought 3 books at 12.00 and 2 pens at 1.75 on 2025-05-05. Order F-6161, paid with card 9876.",
        "G-7000: 1 bicycle, 799.00, for Sven Berg, ordered 2025-04-18, open, invoice.",
        "Order H-8123 of Maya Singh, 2025-06-30, status paid: 4 cushions at 15.50.",
        "I-9009 / Hotel Post / 2025-07-07 / open / 50 towels at 6.20 / 50 bathrobes at 24.00.",
        "On 2025-08-09 Leo Martin returned order J-1234, one pair of shoes at 120.00.",
    ),
    "weather": (
        "Station Zugspitze, 2025-01-10, C: -12 -11 -9 the first day, -14 -13 -10 the second. Gale, no rain.",
        "Miami, 2025-07-01, F: 79 85 90; 80 86 91; 79 84 88. Breeze and rain.",
        "Oslo 2025-04-02, C, one day: 3 6 8 5. Calm, dry.",
        "Cairo. 2025-08-15. C. 28 35 41. No rain.",
        "Chicago, F, 2025-02-20: 15 20 18, then 10 12 9. Storm, rain: no.",
        "Bergen on 2025-10-10: 9 10 10 9 (C). It rains, gale.",
        "Station Alice Springs, 2025-12-01, C, 22 33 39 / 23 35 40. Dry and calm.",
        "Anchorage: 2025-03-03, F, 5 11 14. No rain.",
        "Quito, C, 2025-05-05, two days: 9 15 18 and 10 14 17. Rain.",
        "Lisbon 2025-06-06 C: 17 22 25 24. Breeze, no rain.",
    ),
    "recipe": (
        "Pancakes for 4, easy, 20 minutes, vegetarian. 200 g flour, 2 eggs, 300 ml milk, optionally sugar. Mix. Fry.",
        "Goulash (6 servings, medium, 150 min): 1 kg beef, 4 onions, 2 tbsp paprika. Fry onions. Add beef. Simmer.",
        "Tomato soup, easy, serves 2. 500 g tomatoes, 1 onion, basil if you like. Chop, cook, blend. Vegetarian.",
        "Souffle: hard, 45 minutes, for 4. 4 eggs, 100 g cheese, 50 g butter. No meat.",
        "Fish curry for 3 persons. 400 g cod, 1 can coconut milk, 2 tbsp curry paste. Heat all. Easy.",
        "Bread, medium, 180 minutes, one loaf for 8. 500 g flour, 7 g yeast, 320 ml water, 10 g salt. Knead. Bake.",
        "Green salad, 2 servings, 5 minutes: lettuce, 1 tbsp oil, lemon. Wash. Toss. Easy and vegetarian.",
        "Roast chicken, medium, serves 4, 90 minutes. 1 chicken, 50 g butter, thyme. Rub with butter. Roast.",
        "Risotto, 4 servings, medium, 35 minutes. 300 g rice, 1 l stock, 80 g parmesan. Stir. Stir. Serve. Vegetarian.",
        "Omelette for 1. 3 eggs, salt, 10 g butter. Beat the eggs and fry them. Easy, 8 minutes.",
    ),
    "loan": (
        'Member M0012 borrowed "Middlemarch" by George Eliot, a novel, on 2025-01-10, due 2025-02-10, renewed once.',
        "M4411: Leaves of Grass, Walt Whitman, poetry, 2025-03-01, due 2025-03-29.",
        "The Selfish Gene (Richard Dawkins, science) is with M7300 since 2025-02-02 and due on 2025-03-02.",
        "M0815 took The Gruffalo by Julia Donaldson and Axel Scheffler, a children's book,, 2025-05-05 to 2025-05-19.",
        "Loan: M2020, Dune, Frank Herbert, novel, from 2025-06-01 to 2025-07-01, renewed twice.",
        "M1999 borrowed Good Omens (Terry Pratchett, Neil Gaiman; novel) on 2024-12-31. Due: 2025-01-28.",
        "Poetry for M3141: Ariel by Sylvia Plath. 2025-04-04, due 2025-05-02.",
        "M5005. Cosmos. Carl Sagan. Science. Borrowed 2025-08-08, due 2025-09-05, never renewed.",
        "Children's book The Snowman, Raymond Briggs, M6060, 2025-11-30 to 2025-12-28.",
        "M9876 has Beloved by Toni Morrison (novel) from 2025-09-09 to 2025-10-07.",
    ),
    "meeting": (
        "DataDays in Leipzig, 2025-09-10, on site. Fast joins by Ute Kern (TU Dresden), A1. Lakes by Raj Patel, B12.",
        "Online meeting PyNight, Vienna, 2025-02-11: Typing by Eva Gruber, room A2.",
        "Spring School, Porto, starts 2025-04-07. Rivers: Ines Lopes and Joao Reis, C3. Not online.",
        "Robotics Forum, Osaka, 2025-11-20: Grippers, Ken Sato (Kobe University), D14; Legs, Mia Ito, D15.",
        "Night of Stars in Tartu, 2025-10-01. Comets by Jaan Kask. Room B7.",
        "Health Summit, online from Geneva, 2025-06-16. Vaccines: Amina Diallo (WHO), room A100.",
        "City Forum, Malmo, 2025-05-21, in person. Bicycles, Lars Holm, C21. Parks, Eva Lund (City of Malmo), C22.",
        "Bee Day, Ljubljana, 2025-05-20: Hives by Anton Zupan, room A9.",
        "Compiler Camp in Edinburgh, 2025-08-03. Inlining: Fiona Ross and Hugh Bell (Uni Edinburgh), B33. Online too.",
        "Wool Week, Lerwick, 2025-09-27, on site. Knitting with Isla Gray, D1.",
    ),
    "match": (
        "Clay, 2025-05-30: Iga Nowak (POL) beat Anna Blinova (RUS) 6-3 6-4.",
        "On grass Carlos Vega (ESP) won 7-6 3-6 6-1 against Tim Hall (GBR), 2025-07-02.",
        "Hard court, 2025-01-20. Mei Lin (CHN) - Sara Costa (BRA) 6-0 6-2.",
        "Jan Maly CZE, Leo Roux FRA, clay, 4-6 6-4 2-1, Roux retired, 2025-04-11.",
        "2025-08-28, hard: Ben Stone (USA) against Yuto Abe (JPN): 6-4 7-5 6-3.",
        "Grass: Emma Byrne IRL 7-5 6-7 7-5 Lotte Smit NED. 2025-06-19.",
        "Played on 2025-09-01 on hard courts: Ana Kovac (CRO), Lea Huber (AUT), 6-2 6-2.",
        "Diego Paz (ARG) and Nils Dahl (SWE), clay, 2025-02-14, 6-7 6-7.",
        "Hard, 2025-10-05. Omar Nasser (EGY) 1-6 Finn Moore (AUS), Nasser retired after one set.",
        "Ivo Ilic SRB defeated Max Jung GER 6-1 6-1 on clay, 2025-05-12.",
    ),
    "survey": (
        "Respondent R1, 34 years old, 2025-03-03. Question 1 yes, question 2 no (too expensive). New.",
        "Miss Hill, age 71, retired, 2025-03-04: 1 yes, 2 yes, 3 unsure.",
        "R17, age unknown, 2025-03-05. Q1: no. Q2: no. Q3: no.",
        "2025-03-06, student, 21: question 1 unsure, comment: ask me later.",
        "Respondent Karl, 45, returning, 2025-03-07, 1 yes 2 unsure 3 no 4 yes.",
        "R22 (50) on 2025-03-08: question 5 yes, comment great staff.",
        "Visitor 9, 18, new and student, 2025-03-09: 1 yes, 2 yes.",
        "R30, 2025-03-10, age not given. 1 no, comment: closed on Sundays.",
        "Old friend Otto, 88, retired, returning. 2025-03-11. 1 yes.",
        "R41, 29, 2025-03-12, answers: 1 no, 2 yes, 3 yes, 4 no.",
    ),
}
"""Ten short texts for each schema."""
