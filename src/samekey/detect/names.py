"""What the name of a column or table suggests. Names are hints: they decide how loud a finding is, never a count."""

from __future__ import annotations

import re

from samekey.detect.catalog import Column, Kind, Table

# A client sends such a value to recognise its own retry: two rows with one value are one request stored twice.
STRONG = re.compile(
    r"^(idempotency_?key|idempotence_?key|dedup(e|lication)?_?(key|id)|client_?(request|order|ref|reference|token)(_?id)?"
    r"|request_?(id|key|uuid)|external_?(id|ref|reference|order_id|payment_id)|order_?(ref|reference|number|no)"
    r"|payment_?(ref|reference|intent)|invoice_?(number|no|ref)|transaction_?(ref|reference|uuid)|correlation_?id"
    r"|event_?(id|uuid)|message_?(id|uuid)|delivery_?id|webhook_?id|provider_?(id|ref)|charge_?id)$",
    re.I,
)
MEDIUM = re.compile(r"(^|_)(reference|ref|number|email|sku|slug|username|login|uuid|iban|isin|vat_id|tax_id)$", re.I)
TENANT = re.compile(
    r"^(tenant|account|organi[sz]ation|org|customer|merchant|workspace|company|shop|region)(_?(id|uuid|code))?$", re.I
)
TIME = re.compile(
    r"(^|_)(created|inserted|updated|received|recorded|ingested|stored)(_?(at|on|time|ts))?$|^(timestamp|ts)$", re.I
)
DELETED = re.compile(r"\b(is_)?(deleted|archived|removed|active|revoked|cancell?ed)(_at|_on)?\b", re.I)
KEY_STORE = re.compile(r"idempoten|dedup|processed_?(event|message|request|webhook)|request_?keys?|inbox", re.I)
KEY = re.compile(r"^(key|idempotency_?key|request_?(id|key)|event_?id|message_?id)$", re.I)
FINGERPRINT = re.compile(r"hash|fingerprint|digest|checksum", re.I)
STATE = re.compile(r"^(status|state|phase)$", re.I)
EXPIRY = re.compile(r"expire|expiry|valid_until|ttl|delete_after|retain", re.I)
RANDOM_ID = re.compile(r"(^|_)(token|code|short_?id|public_?id|uid|nanoid|voucher|coupon)$", re.I)


def tenant_of(table: Table) -> str:
    """The column that separates one client's rows from another's, or nothing."""
    return next((column.name for column in table.columns if TENANT.search(column.name)), "")


def time_of(table: Table) -> Column | None:
    """The column with the time at which a row was stored."""
    stamps = [column for column in table.columns if column.kind is Kind.TIME and TIME.search(column.name)]
    return stamps[0] if stamps else None


def looks_like_key(table: Table, name: str) -> bool:
    """Whether a client may identify a row by this column, by its name and type."""
    column = table.column(name)
    if name in table.foreign or column.made.value or TENANT.search(name):
        return False
    return bool(STRONG.search(name) or MEDIUM.search(name)) or column.kind in (Kind.TEXT, Kind.UUID)


def is_key_store(table: Table) -> bool:
    """Whether the table exists to recognise repeated requests."""
    return bool(KEY_STORE.search(table.name)) and any(
        len(key.columns) <= 3 and any(KEY.search(name) for name in key.columns) for key in table.keys
    )
