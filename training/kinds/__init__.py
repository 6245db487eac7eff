"""The six kinds of documents, by name."""

from __future__ import annotations

from training.kinds import contact, event, invoice, job, product, ticket
from training.kinds.kind import Kind

KINDS: dict[str, Kind] = {
    kind.name: kind for kind in (contact.KIND, invoice.KIND, event.KIND, ticket.KIND, job.KIND, product.KIND)
}
