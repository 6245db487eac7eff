# ruff: noqa: E501
"""Product listings: what it is, who makes it, what it costs."""

from __future__ import annotations

from decimal import Decimal

from training.kinds.kind import Kind, Record
from training.lexicon import GOODS_ADJECTIVES, GOODS_NOUNS
from training.values import ValueSource
from training.wording import Wordings


def draw_product_name(source: ValueSource) -> str:
    """The name that a product is sold under."""

    def draw() -> str:
        noun = source.rng.choice(GOODS_NOUNS)
        kind = source.rng.random()
        if kind < 0.35:
            name = f"{source.rng.choice(GOODS_ADJECTIVES)} {noun}"
        elif kind < 0.6:
            name = f"{source.proper()} {noun.capitalize()}"
        elif kind < 0.8:
            name = f"{noun.capitalize()} {source.proper()} {source.digits(source.rng.randint(1, 3))}"
        else:
            name = f"{source.rng.choice(GOODS_ADJECTIVES)} {noun} {source.proper()}"
        return name.title() if source.chance(0.3) else name

    return source.fresh(draw)


def draw_product(source: ValueSource) -> tuple[Record, dict[str, str]]:
    """A listing, in the order of its schema."""
    rating = Decimal(source.rng.randint(20, 50)) / 10
    record: Record = {
        "name": draw_product_name(source),
        "brand": source.maybe(source.company() if source.chance(0.5) else source.fresh(source.proper), 0.85),
        "sku": source.maybe(source.code(("SKU", "ART", "P", "ITEM", "X", "MK", "B")), 0.75),
        "price": source.amount(2, 2500),
        "currency": source.rng.choice(("EUR", "EUR", "USD", "USD", "GBP", "CHF")),
        "colors": source.several(source.colour, 1, 4) if source.chance(0.75) else [],
        "weight_kg": source.amount(0.2, 40).quantize(Decimal("0.1")) if source.chance(0.65) else None,
        "rating": rating if source.chance(0.6) else None,
        "in_stock": source.chance(0.6),
    }
    return record, {"noise_city": source.city(), "noise_person": source.person()}


TRAINING = Wordings(
    is_open=True,
    sentences=(
        "{name} is new.",
        "Everyone loves {name}.",
        "{name} has arrived.",
        "Now you can buy {name}.",
        "This is what you get: {name}.",
        "Who needs {name}?",
        "We proudly show {name}.",
        "{name} is back in the shop.",
        "One of our best: {name}.",
        "Say hello to {name}.",
        "Our tip: {name}.",
        "{brand} built it.",
        "The name on it is {brand}.",
        "It carries the brand {brand}.",
        "From the house of {brand}.",
        "The code {sku} belongs to it.",
        "Ask for {sku}.",
        "{sku} is its number.",
        "It is listed as {sku}.",
        "It is offered at {price}.",
        "{price} is all you pay.",
        "We want {price}.",
        "The price was set to {price}.",
        "It goes for {price}.",
        "{colors} are possible.",
        "It is made in {colors}.",
        "Pick {colors}.",
        "{weight_kg} kg is its weight.",
        "It is {weight_kg} kg.",
        "You will carry {weight_kg} kg.",
        "{rating} stars.",
        "It got {rating} points.",
        "The score stands at {rating}.",
        "Buyers say {rating}.",
        "<The |Our |The new |>{name} <costs|is sold for|is available for|sells for|is yours for> {price}.",
        "<Meet|Discover|Introducing|Now in our shop:|New in our shop:> <the |our |>{name}.",
        "<The |Our |The new |>{name} <by|from> {brand} <is here|has arrived|is a favourite of our customers|makes life easier>.",
        "{brand} <presents|brings you|has made|launches|offers> <the |a new |>{name}.",
        "<The article is called|The product is called|The name is|This is> <the |>{name}.",
        "<Product|Article|Item>: {name}.",
        "<You are looking at|This page shows|Here you see> <the |>{name}.",
        "{name} - {brand} - {price}.",
        "{name} ({sku}) <by|from> {brand}.",
        "{name}, article number {sku}<, costs|, only|, price> {price}.",
        "<With|Thanks to> <the |>{name} <work is easier|every day gets better|nothing is impossible>.",
        "<It is made by|The brand is|The maker is|The manufacturer is|It comes from> {brand}.",
        "<Brand|Maker|Manufacturer>: {brand}.",
        "{brand} <is the maker|is the brand|stands for quality|made it|designed it>.",
        "<A product by|Another product by|Made by|Designed by> {brand}.",
        "<The article number is|The SKU is|The product code is|Order it under|Its number is> {sku}.",
        "<SKU|Article number|Product code|Item number>: {sku}.",
        "<Use|Enter|Give> <the code |the number |>{sku} <to order|when you order|for your order>.",
        "<In our catalogue|In the shop> it has the number {sku}.",
        "<It costs|The price is|We sell it for|You pay|Now only|Yours for|Buy it for> {price}.",
        "<Price|Our price|Cost>: {price}.",
        "<At|For> {price} <it is a bargain|it is yours|you cannot go wrong|it is a good buy>.",
        "<Just|Only> {price}<!| for this piece.| including tax.>",
        "<It comes in|It is available in|Available in|You can get it in|Choose between> {colors}.",
        "<Colours|Colors|Available colours|Colour>: {colors}.",
        "<The colours are|The colour is|Pick your colour:|We have it in> {colors}.",
        "{colors} <are the colours on offer|can be chosen as colour|is what we have in colours>.",
        "<It weighs|The weight is|It has a weight of|Its weight is> {weight_kg} kg.",
        "<Weight|Net weight>: {weight_kg} kg.",
        "<At|With> {weight_kg} kg <it is easy to carry|it is light enough|it stands firmly>.",
        "<The scale shows|It brings> {weight_kg} <kilograms|kilos|kg>.",
        "<Customers rate it|It is rated|The rating is|Buyers give it|It has a rating of> {rating}<| out of 5| of 5 stars| stars>.",
        "<Rating|Customer rating|Stars>: {rating}<| / 5|>.",
        "<An average of|A rating of> {rating} stars <says it all|speaks for itself|was given by buyers>.",
        "{rating} <out of 5|of 5> <stars|points><| from our customers>.",
    ),
    states={
        "in_stock": {
            "true": (
                "Plenty are left.",
                "It is on the shelf.",
                "You can take it home today.",
                "The shelves are full.",
                "It is still in stock.",
                "We have it here.",
                "<It is|The product is|This item is|Currently> in stock.",
                "<In stock|Availability>: <yes|in stock>.",
                "<Available now|Available immediately|In stock|Ready to ship>.",
                "<It ships|We ship it|We send it> <today|at once|within a day|tomorrow>.",
                "<We have|There are> <plenty|many|enough> <in stock|in the warehouse>.",
                "<You can|You may> <order|buy> it <right away|today|now>.",
                "<It can be delivered|Delivery is possible> <at once|immediately>.",
            ),
            "false": (
                "None are left.",
                "It is missing from the shelf.",
                "You have to wait for it.",
                "The shelves are empty.",
                "It is no longer in stock.",
                "We do not have it here.",
                "<It is|The product is|This item is|Currently> <out of stock|not in stock|sold out>.",
                "<In stock|Availability>: <no|out of stock>.",
                "<Not available|Sold out|Out of stock|Currently unavailable>.",
                "It cannot be <shipped|delivered> at the moment.",
                "<We have|There are> <none|none left> <in stock|in the warehouse>.",
                "You <cannot|can not> <order|buy> it <right now|today|at the moment>.",
                "<New stock|The next delivery> <arrives|is expected> <in a month|next month|later>, <now it is sold out|until then it is out of stock>.",
            ),
        }
    },
    labels={
        "name": ("Product", "Name", "Article", "Item", "Product name", "Title", "Model"),
        "brand": ("Brand", "Maker", "Manufacturer", "By", "Made by", "Producer", "From"),
        "sku": ("SKU", "Article number", "Product code", "Item number", "Art. no.", "Code", "Order number"),
        "price": ("Price", "Cost", "Our price", "Only", "Unit price", "Retail price", "Price today"),
        "colors": ("Colours", "Colors", "Colour", "Color", "Available in", "Colour options", "Comes in"),
        "weight_kg": ("Weight", "Net weight", "Weight in kg", "Mass", "Kilograms", "Shipping weight"),
        "rating": ("Rating", "Customer rating", "Stars", "Score", "Reviews", "Average rating"),
        "in_stock": ("In stock", "Available", "Stock", "On stock", "Availability"),
    },
    state_words={
        "in_stock": {
            "true": ("yes", "Yes", "true", "in stock"),
            "false": ("no", "No", "false", "sold out", "out of stock"),
        }
    },
    absences={
        "brand": ("<The maker|The brand> is <unknown|not named>.", "It is a product without a brand."),
        "sku": ("<The article number|The product code> is <missing|not known>.", "It has no article number."),
        "colors": ("<The colour|The colours> <cannot be chosen|is not listed|are not listed>.",),
        "weight_kg": ("<The weight|How heavy it is> is <unknown|not known|not listed>.",),
        "rating": (
            "<There are no reviews yet|Nobody has rated it yet|No ratings yet>.",
            "It has not been rated <so far|yet>.",
        ),
    },
    distractors=(
        "<The warranty|The guarantee> lasts {~noise_count} <years|months>.",
        "<Shipping|Delivery> takes {~noise_count} days.",
        "<More than|Over> {~noise_count} <pieces were sold|people bought it> last year.",
        "It was <designed|developed> in {~noise_city}.",
        "<The model|The series> was launched in {~noise_year}.",
        "<The manual|The leaflet> has {~noise_count} pages.",
        "Batteries are <included|not included>.",
        "<A perfect gift|A nice gift> for <everyone|friends|colleagues>.",
        "<Our shop|The catalogue> was updated on {~noise_date}.",
        "{~noise_person} wrote: <I love it|very good|I would buy it again>.",
        "<Easy to clean|Made to last|Simple to use>.",
        "You can return it within {~noise_count} days.",
        "The voucher code is {~noise_code}.",
        "<Packed|Shipped> without plastic.",
    ),
    titles=("Product", "Shop", "Catalogue", "Special offer", "New in store", "Product sheet", "Listing"),
    openings=("Dear customers,", "Hello,", "Good news:", "Just in:", "Dear friends of good things,"),
    closings=("Order now!", "Your shop team", "Happy shopping", "Thank you for your visit", "Kind regards"),
    nouns=("Product", "Article", "Item"),
)

HELD_OUT = Wordings(
    sentences=(
        "Have you heard of {name}?",
        "On our shelves you now find {name}.",
        "The thing is sold as {name}.",
        "Everybody talks about {name}.",
        "Behind it stands the brand {brand}.",
        "The factory belongs to {brand}.",
        "The label on the box reads {brand}.",
        "When ordering, mention {sku}.",
        "The box carries the number {sku}.",
        "Search for {sku} to find it again.",
        "We ask {price} for it.",
        "At the checkout it will be {price}.",
        "The tag says {price}.",
        "You may have it in {colors}.",
        "Its colours: {colors}.",
        "It was painted in {colors}.",
        "Put it on the scale and you read {weight_kg} kg.",
        "All together it is {weight_kg} kg heavy.",
        "Those who bought it gave {rating} stars.",
        "On average the score is {rating}.",
        "Our readers rated it with {rating}.",
    ),
    states={
        "in_stock": {
            "true": (
                "There is enough of it in stock.",
                "The warehouse has it in stock.",
                "It is available and can be shipped today.",
                "You can have it right away.",
            ),
            "false": (
                "There is nothing of it left in stock.",
                "The warehouse is out of stock.",
                "It is not available and cannot be shipped today.",
                "Sorry, it is sold out for now.",
            ),
        }
    },
    labels={
        "name": ("Product title", "Name of article"),
        "brand": ("Brand name", "Name of maker"),
        "sku": ("SKU number", "Article no."),
        "price": ("Sales price", "Price per piece"),
        "colors": ("Colour choice", "Choice of colors"),
        "weight_kg": ("Total weight", "Product weight"),
        "rating": ("User rating", "Stars given"),
        "in_stock": ("Available now", "Is in stock"),
    },
    state_words={"in_stock": {"true": ("YES", "yes, in stock"), "false": ("NO", "no, sold out")}},
    absences={
        "brand": ("Who makes it we do not know.",),
        "sku": ("A product code was not given.",),
        "colors": ("About the colour we know nothing.",),
        "weight_kg": ("About the weight we know nothing.",),
        "rating": ("So far nobody gave a rating.",),
    },
    distractors=(
        "It fits in every home.",
        "The idea was born in {~noise_city}.",
        "Do not use it under water.",
        "{~noise_count} shops in the country carry it.",
        "Wash before first use.",
    ),
    titles=("From our shop", "Offer of the week", "What we sell"),
    openings=("Dear shoppers,", "Have a look:", "Hello dear customers,"),
    closings=("Enjoy your purchase", "Until soon in our shop", "With best wishes"),
    nouns=("Our product", "This article"),
)

KIND = Kind(
    name="product",
    draw=draw_product,
    training=TRAINING,
    held_out=HELD_OUT,
    aliases={
        "name": ("product", "title", "product_name", "article"),
        "brand": ("maker", "manufacturer", "producer"),
        "sku": ("article_number", "product_code", "item_number", "code"),
        "price": ("cost", "amount", "unit_price"),
        "colors": ("colours", "color_options", "available_colors"),
        "weight_kg": ("weight", "kilograms"),
        "rating": ("stars", "score", "average_rating"),
        "in_stock": ("available", "is_available", "stock"),
    },
    money=("price",),
)
