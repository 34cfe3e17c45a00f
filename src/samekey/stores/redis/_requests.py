"""Requests to Redis: the names of keys, the scripts, and one command for the server that has its bucket.

Keys are spread over 256 buckets by the first byte of their digest. All keys of a bucket carry its hash tag, so that
one script may touch them in a cluster. Each bucket has a marker: when it was made, on which server it lives, and when
it last may have lost something (`_knowledge`).
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha1
from importlib import resources

from samekey.drivers.redis.wire import slot_of, template

BUCKETS = 256
TAGS = [b"samekey:{%02x}:" % number for number in range(BUCKETS)]
MARKERS = [tag + b"marker" for tag in TAGS]
UNSETTLED = [tag + b"unsettled" for tag in TAGS]
AUDITS = [tag + b"audit" for tag in TAGS]
SLOTS = [slot_of(tag) for tag in TAGS]


class Script:
    """A script, called by its digest. A server that does not know it (flushed, restarted, promoted) gets the source."""

    def __init__(self, name: str) -> None:
        path = resources.files("samekey.stores.redis") / "lua" / f"{name}.lua"
        self.source = path.read_bytes()
        self.digest = sha1(self.source).hexdigest().encode()  # noqa: S324 - Redis' own name for a script
        self._templates: dict[tuple[int, int], bytes] = {}

    def call(self, keys: Sequence[bytes], arguments: Sequence[bytes]) -> bytes:
        """The command that runs it, in the wire format."""
        pattern = self._templates.get((len(keys), len(arguments)))
        if pattern is None:
            pattern = self._templates[len(keys), len(arguments)] = template(
                (b"EVALSHA", self.digest, b"%d" % len(keys)), len(keys) + len(arguments)
            )
        if len(keys) == 3 and len(arguments) == 3:  # a claim
            (one, two, three), (four, five, six) = keys, arguments
            lengths = (len(one), one, len(two), two, len(three), three)
            return pattern % (*lengths, len(four), four, len(five), five, len(six), six)
        if len(keys) == 2 and len(arguments) == 2:  # a settle
            (one, two), (three, four) = keys, arguments
            return pattern % (len(one), one, len(two), two, len(three), three, len(four), four)
        return pattern % tuple([value for part in (*keys, *arguments) for value in (len(part), part)])


OPEN, WRITE, READ, SELF_CHECK = Script("open"), Script("write"), Script("read"), Script("self_check")
PRUNE = Script("prune")


class Request:
    """One command for the server that has this bucket (or, without one, for a server by name)."""

    asking = ""  # the server that has the key at the moment, while its bucket moves there
    whole = False  # send the source of the script: the server does not know its digest
    lost = False  # a reply was lost: the server may have carried it out already
    tried = False  # the server refused it for now
    redirects = 0
    guest = ""  # the server that was last named in `asking`: the bucket is moving there

    def __init__(
        self,
        bucket: int,
        script: Script | None,
        keys: Sequence[bytes],
        arguments: Sequence[bytes],
        risky: bool = False,
        *,
        server: str = "",
    ) -> None:
        self.bucket, self.script, self.keys, self.arguments = bucket, script, keys, arguments
        self.risky = risky  # its effect may run twice if this server forgets the claim
        self.server = server
