# ruff: noqa: SIM905, E501
"""Word lists that the random values are drawn from."""

from __future__ import annotations

FIRST_NAMES = tuple(
    "Anna Ben Clara David Elena Felix Grace Hugo Ines Jonas Katrin Liam Maria Noah Olivia Paul Quentin Rosa Samuel "
    "Tara Ulrich Vera William Xenia Yusuf Zoe Aisha Bruno Carmen Diego Emma Farid Greta Hannah Ivan Julia Karim Laura "
    "Marco Nina Oscar Priya Rafael Sofia Thomas Uma Viktor Wendy Yara Adam Bianca Chen Dmitri Esther Fatima George "
    "Helen Igor Jana Kenji Leila Mateo Nadia Omar Petra Ravi Sara Tom Ursula Vincent Walter Amélie Björn Chloé Danièle "
    "Łukasz Søren Zoë José Mónica Jürgen Åsa Iñigo François Renée Andrea Robert Linda James Mary Patricia Michael Lucy "
    "Edward Alice Henry Ruth Simon Judith Martin Irene Peter Joan Arthur Mei Wei Hiro Yuki Amir Noor Kofi Ama Thabo "
    "Lerato Ingrid Lars Sven Astrid".split()
)
LAST_NAMES = tuple(
    "Berg Schmidt Keller Rossi Novak Silva Okafor Tanaka Ahmed Larsen Dubois Moreau Garcia Lopez Weber Fischer Brandt "
    "Hughes Walsh Murphy Stewart Palmer Reed Cole Hayes Foster Grant Porter Ellis Doyle Quinn Vargas Mendes Costa "
    "Ferreira Bianchi Ricci Conti Jansen Visser Bakker Peeters Nilsson Lindqvist Hansen Virtanen Kowalski Nowak Horvat "
    "Petrov Ivanov Sokolov Popescu Papadakis Yilmaz Demir Haddad Nasser Khan Patel Sharma Gupta Nguyen Tran Kim Park "
    "Chen Wang Liu Sato Suzuki Mensah Diallo Mbeki Abara Osei Müller Köhler Schäfer Böhm Lefèvre Muñoz Peña Sørensen "
    "Håkansson Kovačević Żak Baker Turner Cooper Bell Ward Cox Price Wood Brooks Gray James Bennett Ross Long Powell "
    "Webb Hunt Shaw Holmes Rice".split()
)
CITIES = tuple(
    "Berlin|Munich|Hamburg|Paris|Lyon|Madrid|Lisbon|Rome|Milan|Vienna|Zurich|Geneva|Basel|London|Leeds|Bristol|Dublin|"
    "Oslo|Stockholm|Copenhagen|Helsinki|Warsaw|Prague|Budapest|Athens|Boston|Chicago|Denver|Austin|Seattle|Portland|"
    "Toronto|Montreal|New York|San Diego|Los Angeles|Tokyo|Osaka|Seoul|Singapore|Sydney|Melbourne|Cape Town|Nairobi|"
    "Lagos|Accra|Cairo|Rabat|Tunis|Mumbai|Delhi|Bangalore|São Paulo|Rio de Janeiro|Buenos Aires|Lima|Bogotá|Quito|"
    "Santiago|Mexico City|Köln|Düsseldorf|Tübingen|Graz|Linz|Bern|Turin|Naples|Porto|Seville|Valencia|Bilbao|Nantes|"
    "Lille|Ghent|Antwerp|Utrecht|Rotterdam|Bergen|Aarhus|Malmö|Tampere|Gdańsk|Kraków|Brno|Riga|Vilnius|Tallinn|Sofia|"
    "Zagreb|Belgrade|Izmir|Haifa|Dubai|Hanoi|Manila|Perth|Auckland".split("|")
)
COMPANY_WORDS = tuple(
    "Harbor North Summit River Bright Silver Green Blue Nova Apex Orion Delta Atlas Vertex Zenith Pioneer Falcon Cedar "
    "Maple Stone Iron Copper Crystal Solar Lunar Ocean Alpine Urban Metro Global Prime Quantum Digital Cloud Data Cyber "
    "Media Health Energy Logistics Foods Textiles Motors Robotics Systems Solutions Partners Consulting Analytics "
    "Software Design Studio Press Books Supplies Trading Transport Security Finance Capital Labs Optics Garden Paper "
    "Printing Packaging Instruments Marine Travel Sports Bakery Coffee Furniture Lighting Ceramics".split()
)
COMPANY_SUFFIXES = tuple("GmbH Ltd Inc AG LLC SA BV AB Group Co Corp SpA SARL Oy plc SE KG Ltd. Inc. Holding".split())
MAIL_DOMAINS = tuple("mail post example inbox webmail corp office team".split())
SYLLABLE_ONSETS = tuple(
    "b c d f g h j k l m n p r s t v w z br cr dr fr gr kr pl st sh th tr ch gl sk qu bl fl sp".split()
)
SYLLABLE_NUCLEI = tuple("a e i o u a e i o u ai ea ou ie oo au y ei".split())
SYLLABLE_CODAS = (
    "",
    "",
    "",
    "n",
    "r",
    "s",
    "l",
    "t",
    "m",
    "x",
    "k",
    "nd",
    "rt",
    "ng",
    "ck",
    "lin",
    "dor",
    "mer",
    "son",
)
COLOURS = tuple(
    "black white red blue green yellow orange purple pink grey brown silver gold beige navy teal ivory olive maroon "
    "turquoise violet cream charcoal bronze".split()
)
COLOUR_SHADES = tuple("dark light pale deep bright matte soft warm dusty pearl sea forest sky stone royal".split())

JOB_AREAS = tuple(
    "software data sales marketing product project account finance quality security network support design research "
    "procurement logistics mechanical electrical backend frontend cloud web office content legal training payroll "
    "regional technical clinical customer warehouse field systems process safety test".split()
)
JOB_ROLES = tuple(
    "engineer manager analyst developer consultant assistant coordinator specialist designer director lead architect "
    "officer technician administrator advisor planner buyer controller scientist editor trainer".split()
)
SINGLE_JOBS = tuple(
    "accountant nurse electrician librarian translator chef baker carpenter photographer teacher paralegal plumber "
    "welder receptionist driver gardener pharmacist surveyor bookkeeper copywriter machinist beekeeper".split()
)
SENIORITIES = tuple("senior junior chief head principal deputy assistant associate lead trainee".split())
SKILLS = tuple(
    "Python|SQL|Java|Excel|Kubernetes|Docker|Rust|Go|TypeScript|React|Linux|AWS|Azure|Git|Terraform|Spark|Tableau|SAP|"
    "AutoCAD|Photoshop|Figma|Salesforce|negotiation|bookkeeping|project planning|public speaking|copywriting|"
    "technical writing|data modelling|statistics|machine learning|welding|forklift licence|first aid|German|French|"
    "Spanish|English|Italian|Japanese|budgeting|team leadership|customer care|scheduling|payroll|Scrum|Kanban|PLC|"
    "CAD drawing|soldering|HTML|CSS|C++|Perl|Matlab|R|PowerPoint|Jira|network security|unit testing|ETL|Kafka|"
    "PostgreSQL|MongoDB|Swift|Kotlin|Android|iOS|SEO|accounting|tax law|contract law|lab safety|GIS|risk analysis|"
    "driving licence|pattern cutting|barista training|food hygiene|video editing|sound mixing|proofreading".split("|")
)
GOODS_ADJECTIVES = tuple(
    "wireless portable compact foldable electric steel wooden ceramic cordless digital smart ergonomic adjustable "
    "waterproof insulated solar leather cotton glass mini heavy-duty rechargeable magnetic organic bamboo carbon "
    "silent modular thermal vintage".split()
)
GOODS_NOUNS = tuple(
    "mouse keyboard lamp desk chair bottle backpack drill kettle toaster headset speaker monitor tripod camera router "
    "charger cable notebook printer scanner blender fan heater clock scale jacket tent helmet lantern whiteboard "
    "stapler shredder projector microphone webcam hub dock stand shelf cabinet rug cushion mug teapot pan knife grill "
    "hammer wrench ladder pump hose rake bench stool mirror frame vase basket trolley toner paper envelopes pens "
    "folders screws gloves boots filter battery adapter".split()
)
SERVICES = tuple(
    "consulting hours|website maintenance|annual licence|on-site repair|translation service|shipping|installation|"
    "training day|cloud hosting|support plan|security audit|graphic design|proofreading|room rental|catering|"
    "data migration|equipment hire|cleaning service|bookkeeping|logo redesign".split("|")
)
PHRASE_WORDS = tuple(
    "water paper office night summer winter city garden kitchen family business music school street market morning "
    "monthly weekly yearly daily annual basic advanced premium small large new old extra full half spare hand home "
    "hours days fee plan check review test care repair rental hire setup support training lesson course class session "
    "design printing painting drawing writing editing reading speaking cooking baking sewing cutting cleaning washing "
    "packing moving storage delivery transport pickup mapping coding planning modelling testing tuning filming mixing "
    "teaching coaching counselling selling buying pricing billing auditing reporting analysis control management law "
    "safety health hygiene energy power gas heating cooling roof window door wall floor tree lawn snow waste bicycle "
    "truck crane engine motor boat animal horse food wine tea cheese bread wood metal stone textile fabric colour photo "
    "image sound voice text word language grammar number graph table form file disk page site domain mail phone "
    "network server backup update upgrade migration licence permit visa insurance tax loan grant event stage ticket".split()
)
EVENT_THEMES = tuple(
    "Data Robotics Climate Design Jazz Poetry History Chess Startup Cloud Security Health Film Photography Gardening "
    "Energy Language Music Theatre Science Mathematics Astronomy Baking Cycling Ocean Architecture Typography Ceramics "
    "Open Source Urban Quantum Wildlife Folk Local Winter Summer Spring Autumn Annual International Regional Founders "
    "Teachers Nursing Logistics Textile Coffee Wine Book".split()
)
EVENT_FORMS = tuple(
    "Conference|Summit|Workshop|Meetup|Forum|Festival|Fair|Symposium|Seminar|Evening|Day|Week|Night|Congress|Hackathon|"
    "Exhibition|Retreat|Lecture|Reading|Concert|Marathon|Camp|Panel|Open House|Roundtable|Gala|Market".split("|")
)
VENUE_FORMS = tuple(
    "Hall|Centre|Theatre|Library|Museum|Hotel|Arena|Gallery|Pavilion|Auditorium|Club|House|Campus|Park|Castle|Studio|"
    "Conference Center|Town Hall|Academy|Church".split("|")
)
SOFTWARE_FORMS = tuple(
    "App|Cloud|Desk|Mail|Sync|Pro|Suite|Drive|Player|Router|Printer|Hub|Pay|Notes|Scan|Portal|Connect|Studio".split("|")
)
FILLERS = tuple(
    "well now then there here also just very really still quite some any this that these those with from into about "
    "after before over under while people thing day way part place case week number house question work point company "
    "group fact see come think look want give use find tell ask seem feel try leave call keep let begin help talk turn "
    "start show hear play run move like live believe hold bring happen write provide sit stand lose pay meet include "
    "continue set learn change lead understand watch follow stop create speak read allow add spend grow open walk offer "
    "remember love consider appear buy wait serve send expect build stay fall cut reach remain suggest raise pass sell "
    "require report decide pull new good first last long great little own other old right big high different small "
    "large next early young important few public same able page paper text note desk list line box file".split()
)
