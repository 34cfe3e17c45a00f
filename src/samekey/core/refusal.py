"""Refusals in envelopes: an exception's class, text, arguments and facts, to be raised again by a replay."""

from __future__ import annotations

from typing import Any

from samekey.core.envelope import Reader, Writer, codec_of, payload_of, seal, tagged
from samekey.core.errors import NotDone, Refused
from samekey.core.extra_attributes import extra_attributes, slots_of
from samekey.core.shapes import NotStorable, Unreadable, find_class, ref_of

_ARGS: Any = BaseException.__dict__["args"]  # the class may have a property of that name, and it may raise


def encode_refusal(error: BaseException, *, max_bytes: int) -> bytes:
    """The envelope of a refusal: class, text, arguments and attributes (private ones too: `__str__` may read them).

    Arguments and attributes that cannot be kept or no longer fit are left out. Class and text always
    stay; only a text that fills `max_bytes` by itself is cut.
    """
    text, facts = _text(error), dict[str, Any]()
    refusal = {"class": ref_of(type(error)), "text": tagged(text), "args": None, "facts": facts}
    room = max_bytes - len(seal("R", refusal))
    if room < 0:
        refusal["text"] = tagged(text[: max(0, len(text) + room)])  # a character is a byte at least
        room = max_bytes - len(seal("R", refusal))
    if room < 0:
        raise NotStorable(f"{refusal['class']}: {max_bytes} bytes have no room for its name")
    wanted = [(facts, name, fact) for name, fact in extra_attributes(error, ()).items() if _is_fact(name)]
    for kept, name, value in [(refusal, "args", list(_ARGS.__get__(error))), *wanted]:
        try:
            node = Writer(max_bytes).run(value)
            size = len(seal("", {name: node}))
        except (NotStorable, ValueError, RecursionError):
            continue
        if size <= room:
            kept[name] = node
            room -= size
    return seal("R", refusal)


def decode_refusal(envelope: bytes, *, allowed: tuple[type[BaseException], ...]) -> BaseException:
    """The refusal in an envelope, to be raised: same class, arguments and attributes.

    The class must be loaded and be, or derive from, one in `allowed`; its `__init__` is not run.
    Otherwise the result is a Refused whose reason names the class. Raises only Unreadable.
    """
    if codec_of(envelope) != "R":
        raise Unreadable("this is a result, not a refusal")
    match payload_of(envelope):
        case {"class": str(ref), "text": node, "args": list() | None as args, "facts": dict(facts)}:
            text = Reader().run(node)
        case _:
            raise Unreadable("a damaged refusal")
    if type(text) is not str:
        raise Unreadable("a refusal whose text is not text")
    cls = find_class(ref, {ref_of(one): one for one in allowed})
    if cls is None or not issubclass(cls, allowed):
        return Refused(f"{ref}, which is not loaded here or not allowed: {text}")
    try:
        return _rebuild(cls, text, args, facts)
    except Exception as why:  # the __new__ of a user's class may raise anything; the refusal must not be lost
        return Refused(f"{ref}, which cannot be rebuilt ({type(why).__name__}): {text}")


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # the __str__ of a user's class may need an attribute that was not kept
        return type(error).__name__


def _is_fact(name: str) -> bool:
    return name.isidentifier() and not name.startswith("__")  # double underscores are Python's and samekey's own


def _rebuild(cls: Any, text: str, args: list[Any] | None, facts: dict[str, Any]) -> BaseException:
    read: dict[str, Any] = {}
    notes = []
    for name, node in (("args", [text] if args is None else args), *facts.items()):
        try:
            read[name] = Reader().run(node)
        except Unreadable as why:  # the class of one of its values is gone; the refusal's own class is not
            notes.append(f"{name} is not replayed: {why}")
    given = tuple(read.pop("args", (text,)))
    error: BaseException = cls.__new__(cls, *given)
    try:  # only the __init__ of the built-in class sets an errno, or the text of a UnicodeError
        next(kind for kind in cls.__mro__ if kind.__module__ == "builtins").__init__(error, *given)
    except TypeError:
        pass  # the built-in class takes other arguments, which the user's class passed to it
    _ARGS.__set__(error, given)  # not its own __setattr__: a frozen dataclass refuses
    if isinstance(error, (Refused, NotDone)):
        error.__dict__.update(reason=text, detail=None)  # handlers may read these, whether they were kept or not
    for name, fact in read.items():
        if name in slots_of(cls):
            BaseException.__setattr__(error, name, fact)
        elif _is_fact(name):
            error.__dict__[name] = fact
    try:
        again = str(error)
    except Exception:  # its `__str__` needs what was not kept, as that of Django's ValidationError({...}) does
        again = text
        mended = {"__slots__": (), "__module__": cls.__module__, "__qualname__": cls.__qualname__}
        error.__class__ = type(cls)(cls.__name__, (cls,), {**mended, "__str__": lambda _: text})
    if again != text:
        notes.append(f"first raised as: {text}")
    if notes:
        BaseException.__setattr__(error, "__notes__", notes)
    return error
