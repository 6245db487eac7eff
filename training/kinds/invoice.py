# ruff: noqa: E501
"""Invoices: who bills whom for what, how much, until when."""

from __future__ import annotations

import datetime
from decimal import Decimal

from training.kinds.kind import Kind, Record, Value
from training.lexicon import GOODS_ADJECTIVES, GOODS_NOUNS, SERVICES
from training.values import ValueSource
from training.wording import Wordings


def draw_goods(source: ValueSource) -> str:
    """A thing or a service that can be bought; in training often composed, for the lists are short."""

    def draw() -> str:
        if not source.reserved and source.chance(0.45):
            return source.phrase()
        kind = source.rng.random()
        if kind < 0.25:
            return source.rng.choice(SERVICES)
        if kind < 0.45:
            return f"{source.word()} {source.rng.choice(GOODS_NOUNS)}"
        if kind < 0.6:
            return f"{source.rng.choice(GOODS_NOUNS)} {source.rng.choice('ABCDKMTXZ')}{source.digits(2)}"
        return f"{source.rng.choice(GOODS_ADJECTIVES)} {source.rng.choice(GOODS_NOUNS)}"

    return source.fresh(draw)


def draw_invoice(source: ValueSource) -> tuple[Record, dict[str, str]]:
    """An invoice whose total is the sum of its lines."""
    items: list[dict[str, Value]] = []
    total = Decimal(0)
    for name in source.several(lambda: draw_goods(source), 1, source.rng.choice((1, 2, 2, 3))):
        quantity = source.rng.choice((1, 1, 2, 3, 4, 5, 6, 8, 10, 12, 20, 25, 40))
        price = source.amount(1.5, 900)
        total += quantity * price
        items.append({"name": name, "quantity": quantity, "unit_price": price})
    date = source.date()
    due = datetime.date.fromisoformat(date) + datetime.timedelta(
        days=source.rng.choice((7, 10, 14, 14, 21, 30, 30, 45, 60))
    )
    record: Record = {
        "number": source.code(("INV", "A", "R", "RE", "F", "BILL", "IN", "FA", "No")),
        "vendor": source.company(),
        "customer": source.company() if source.chance(0.6) else source.person(),
        "date": date,
        "due": source.maybe(due.isoformat(), 0.7),
        "items": items,
        "currency": source.rng.choice(("EUR", "EUR", "USD", "USD", "GBP", "CHF")),
        "total": total,
        "paid": source.chance(0.4),
    }
    return record, {"noise_person": source.person(), "noise_city": source.city()}


TRAINING = Wordings(
    is_open=True,
    sentences=(
        "This bill is known as {number}.",
        "{number} is the number.",
        "We refer to {number}.",
        "The invoice was filed as {number}.",
        "{vendor} wants to be paid.",
        "The goods came from {vendor}.",
        "{vendor} is the one who sells.",
        "Delivery was made by {vendor}.",
        "The money goes to {vendor}.",
        "{customer} is the one who pays.",
        "The goods went to {customer}.",
        "{customer} bought the goods.",
        "The bill was sent to {customer}.",
        "{customer} receives the bill.",
        "{vendor} has sold to {customer}.",
        "The day of the bill is {date}.",
        "{date} is the date.",
        "We billed on {date}.",
        "It was printed on {date}.",
        "{due} is the last chance to pay.",
        "The money is expected on {due}.",
        "It must be paid before {due}.",
        "We wait for the money until {due}.",
        "{total} is the sum.",
        "It costs {total}.",
        "You owe us {total}.",
        "Add it all up and you get {total}.",
        "{total} has to be paid.",
        "You received {items}.",
        "Sold: {items}.",
        "The goods: {items}.",
        "In the box: {items}.",
        "{items} were shipped.",
        "<Invoice|Invoice number|Invoice no.|Bill> {number} <was issued by|from|by> {vendor}.",
        "<This is|Please find attached|Attached is|Enclosed you find> invoice {number}.",
        "<The invoice number is|The number of this invoice is|Our reference is|Please quote> {number}.",
        "{vendor} <bills|invoices|charges> {customer}.",
        "{vendor} <sent|issued|wrote> invoice {number} <to|for> {customer}.",
        "{vendor} <sent|issued> <the invoice|it|this bill> on {date}.",
        "<The seller is|The supplier is|The vendor is|Goods were delivered by> {vendor}.",
        "<We at|Our company> {vendor} <thank you for your order|thank you for your trust>.",
        "Thank you for <buying from|your order at|shopping with> {vendor}.",
        "<The bill comes from|The invoice is from|Supplier is> {vendor}.",
        "<It is addressed to|The customer is|The buyer is|Billed to> {customer}.",
        "<The invoice goes to|We bill|We charge|Sold to> {customer}.",
        "{customer} <ordered|bought> from {vendor}.",
        "{customer} <has to pay|owes> {total}<| in total>.",
        "Dear {customer}, <please find your invoice below|here is your invoice|we charge you as follows>.",
        "<It was issued on|The invoice date is|The date of issue is|Dated> {date}.",
        "<The invoice was written on|Issued|The bill is dated|We wrote this invoice on> {date}.",
        "Invoice {number} of {date} <amounts to|is about|comes to> {total}.",
        "<Invoice|Bill> {number}, <dated|issued> {date}.",
        "<On|As of> {date} {vendor} <issued|made out> invoice {number}.",
        "<Payment is due|It is due|The amount is due|Due> <on|by> {due}.",
        "<Please pay|Please transfer the amount|Kindly pay|We expect payment> <by|until|before|no later than> {due}.",
        "<The due date is|The payment deadline is|Payable until|The term ends on> {due}.",
        "<The total is|The total amount is|In total|The sum is|The grand total is> {total}.",
        "<The invoice amounts to|It comes to|The amount to pay is|Altogether that makes> {total}.",
        "<Total|Grand total|Sum|Amount due>: {total}.",
        "<Please transfer|Please pay|We ask for> {total}<| to our account>.",
        "<Please pay|Please transfer> {total} <by|until|before> {due}.",
        "<A total of|The full amount of|The sum of> {total} is <payable|due> <by|on|until> {due}.",
        "Invoice {number}<, total| over| for| about> {total}.",
        "<We delivered|We supplied|We charge for|You ordered|You bought>: {items}.",
        "<The order was|The items are|Items|Positions|The delivery contained>: {items}.",
        "<The invoice lists|The bill covers|It covers|It is for> {items}.",
        "{customer} <ordered|received|bought> {items}.",
        "{vendor} <delivered|supplied|provided> {items}.",
        "For {items} we <charge|bill|ask> {total}.",
        "From: {vendor}. To: {customer}.",
        "Seller {vendor}, buyer {customer}, date {date}.",
    ),
    states={
        "paid": {
            "true": (
                "The bill was paid in cash.",
                "Everything has been paid.",
                "We got the money, thanks.",
                "The transfer reached us.",
                "No money is owed any more.",
                "The sum has been received.",
                "<The invoice|The bill|It> <has been paid|is paid|was paid|has already been paid>.",
                "<Payment|The payment|The money> <has been received|was received|has arrived|came in>.",
                "<Paid|Status: paid|Already paid|Paid in full>.",
                "<We thank you|Thank you> for <your payment|paying promptly|the payment>.",
                "<The amount|The sum> <was transferred|has been transferred|was settled> <already|last week|in full>.",
                "<Nothing|There is nothing> <is open|left to pay>.",
                "The customer <has paid|paid> <the full amount|everything|by card|in cash>.",
                "<The account|The balance> is <settled|cleared>.",
                "We have <received|booked> <your payment|the full amount>.",
                "<This invoice|The invoice> is <settled|closed and paid>.",
            ),
            "false": (
                "The bill was never paid.",
                "Nothing has been paid.",
                "We did not get the money.",
                "The transfer did not reach us.",
                "The money is still owed.",
                "The sum has not been received.",
                "<The invoice|The bill|It> <has not been paid|is not paid|is unpaid|has not yet been paid>.",
                "<Payment|The payment|The money> <has not been received|is still missing|has not arrived|is outstanding>.",
                "<Unpaid|Status: unpaid|Status: open|Not paid yet>.",
                "<We are waiting|We still wait> for <your payment|the money|the transfer>.",
                "<The amount|The sum> <is still open|remains open|was not transferred yet>.",
                "<The full amount|Everything> is <open|left to pay>.",
                "The customer has <not paid|not paid anything|paid nothing> <yet|so far>.",
                "<The account|The balance> is <open|not settled>.",
                "We have not <received|booked> <your payment|any money>.",
                "<This invoice|The invoice> is <open|still to be paid>.",
            ),
        }
    },
    labels={
        "number": ("Invoice", "Invoice number", "Invoice no.", "Number", "No.", "Invoice #", "Reference", "Bill no."),
        "vendor": ("Vendor", "From", "Seller", "Supplier", "Issued by", "Company", "Sender", "Billed by"),
        "customer": ("Customer", "To", "Bill to", "Buyer", "Client", "Billed to", "Recipient", "Sold to"),
        "date": ("Date", "Invoice date", "Issued", "Date of issue", "Issued on", "Dated", "Billing date"),
        "due": ("Due", "Due date", "Payable by", "Pay by", "Payment due", "Deadline", "Due on", "Pay until"),
        "items": ("Items", "Positions", "Order", "Lines", "Goods", "Articles", "Details", "Services"),
        "total": ("Total", "Amount", "Sum", "Grand total", "Total amount", "Amount due", "To pay", "Total due"),
        "paid": ("Paid", "Payment received", "Settled", "Already paid"),
    },
    state_words={"paid": {"true": ("yes", "Yes", "true", "x"), "false": ("no", "No", "false", "not yet")}},
    absences={
        "due": (
            "<No due date|No deadline|No payment term> was <set|agreed>.",
            "There is no <due date|deadline>.",
            "<Pay whenever you can|Payable at any time>.",
        )
    },
    distractors=(
        "<If you have questions|For questions>, <call us|write to us|just ask>.",
        "Our <office|shop> in {~noise_city} is closed on Mondays.",
        "<The goods remain|Everything remains> our property until paid in full.",
        "<The order|The delivery> was <handled|packed> by {~noise_person}.",
        "Your customer number is {~noise_code}.",
        "<The delivery note|The parcel> has the number {~noise_code}.",
        "<Delivered|Shipped> on {~noise_date}.",
        "VAT is included.",
        "All prices include tax.",
        "<We hope|Hope> to see you again soon.",
        "The order arrived within {~noise_count} days.",
        "Please <keep|file> this document for <ten|seven> years.",
        "Last year you ordered {~noise_count} times.",
        "<The warranty|The guarantee> runs for {~noise_count} months.",
    ),
    titles=("INVOICE", "Invoice", "Bill", "Your invoice", "Payment request", "Invoice copy", "Accounting"),
    openings=("Dear customer,", "Hello,", "Dear Sir or Madam,", "Hi,", "Good day,", "Dear accounting team,"),
    closings=("Kind regards", "Best regards", "Thank you for your business", "Yours sincerely", "Many thanks"),
    nouns=("Invoice", "Bill", "Invoice copy"),
    item_styles=(
        "{quantity} x {item} at {price}",
        "{quantity} x {item} ({price} each)",
        "{quantity} {item} for {price} each",
        "{item}, quantity {quantity}, {price} each",
        "{item} ({quantity} x {price})",
        "{item}: {quantity} at {price}",
        "{quantity} pcs {item} @ {price}",
        "{item} x {quantity}, unit price {price}",
        "{quantity} units of {item} at {price} per unit",
        "{item}, {quantity} pieces, {price} per piece",
        "{quantity}x {item} {price}",
        "{item} | {quantity} | {price}",
    ),
)

HELD_OUT = Wordings(
    sentences=(
        "With the document {number} a purchase is put on the books.",
        "You will find the number {number} at the top of the page.",
        "The paper carries the invoice number {number}.",
        "The sender of the bill is {vendor}.",
        "It was {vendor} who delivered.",
        "Behind this bill stands {vendor}.",
        "The recipient of the bill is {customer}.",
        "It will be paid by {customer}.",
        "The debtor is {customer}.",
        "Written on {date}.",
        "The document bears the date {date}.",
        "It was drawn up on {date}.",
        "The money should be with us by {due}.",
        "You have time to pay until {due}.",
        "The last day for payment is {due}.",
        "All in all this costs {total}.",
        "The bottom line is {total}.",
        "The final amount reads {total}.",
        "The purchase consisted of {items}.",
        "Here is what was sold: {items}.",
        "We put on the bill: {items}.",
        "{vendor} asks {customer} for {total}.",
    ),
    states={
        "paid": {
            "true": (
                "The money is already on our account.",
                "Your payment was booked, thank you.",
                "The customer already paid for everything.",
                "It was paid on the same day.",
            ),
            "false": (
                "The money is not on our account yet.",
                "Your payment was not booked so far.",
                "The customer still has to pay for everything.",
                "It was not paid in time.",
            ),
        }
    },
    labels={
        "number": ("Invoice ID", "Document no."),
        "vendor": ("Seller name", "Invoice from"),
        "customer": ("Customer name", "Invoice to"),
        "date": ("Date of invoice", "Written on"),
        "due": ("Due by", "Payment deadline"),
        "items": ("Items sold", "List of goods"),
        "total": ("Total sum", "Final amount"),
        "paid": ("Invoice paid", "Payment done"),
    },
    state_words={"paid": {"true": ("YES", "it is"), "false": ("NO", "it is not")}},
    absences={"due": ("Nobody named a due date.", "A deadline was not agreed upon.")},
    distractors=(
        "The driver rang twice.",
        "Please recycle the box.",
        "Our team grew by {~noise_count} people this year.",
        "{~noise_person} is on holiday until further notice.",
        "The catalogue has {~noise_count} pages.",
    ),
    titles=("Invoice for you", "Your bill", "Statement of purchase"),
    openings=("Dear partner,", "Good morning to you,", "To whom it may concern,"),
    closings=("With thanks", "Warm regards", "Until next time"),
    nouns=("Invoice document", "Our bill"),
    item_styles=(
        "{quantity} of {item} at {price} a piece",
        "{item} - {quantity} times {price}",
        "{item}, {quantity} of them, each {price}",
    ),
)

KIND = Kind(
    name="invoice",
    draw=draw_invoice,
    training=TRAINING,
    held_out=HELD_OUT,
    aliases={
        "number": ("invoice_number", "invoice_no", "id", "reference", "invoice_id"),
        "vendor": ("seller", "supplier", "issuer", "company", "sender"),
        "customer": ("buyer", "client", "recipient", "bill_to"),
        "date": ("invoice_date", "issued", "issue_date"),
        "due": ("due_date", "deadline", "payable_by"),
        "items": ("lines", "positions", "line_items"),
        "total": ("amount", "sum", "total_amount", "price"),
        "paid": ("is_paid", "settled", "payment_received"),
    },
    money=("total",),
)
