"""Money as whole minor units: a statement prints decimals, and a float would lose cents."""

from __future__ import annotations

from collections.abc import Mapping

# ISO 4217: currencies whose minor unit is not a hundredth.
EXPONENTS: Mapping[str, int] = {
    **dict.fromkeys(("BIF", "CLP", "DJF", "GNF", "ISK", "JPY", "KMF", "KRW", "PYG", "RWF", "UGX", "UYI"), 0),
    **dict.fromkeys(("VND", "VUV", "XAF", "XOF", "XPF"), 0),
    **dict.fromkeys(("BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND"), 3),
    **dict.fromkeys(("CLF", "UYW"), 4),
}
# Currencies with two decimals that a statement may have; any other text is unreadable, not a guess.
_WITH_TWO = (
    "AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BGN BMD BND BOB BRL BSD BTN BWP BYN BZD CAD CDF "
    "CHF CNY COP CRC CUP CVE CZK DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GTQ GYD HKD "
    "HNL HTG HUF IDR ILS INR IRR JMD KES KGS KHR KPW KYD KZT LAK LBP LKR LRD LSL MAD MDL MGA MKD MMK "
    "MNT MOP MRU MUR MVR MWK MXN MYR MZN NAD NGN NIO NOK NPR NZD PAB PEN PGK PHP PKR PLN QAR RON RSD "
    "RUB SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN SVC SYP SZL THB TJS TMT TOP TRY TTD TWD TZS "
    "UAH USD UYU UZS VED VES WST XCD YER ZAR ZMW ZWG "
)
HUNDREDTHS = frozenset(_WITH_TWO.split())


def exponents(overrides: Mapping[str, int] = {}) -> dict[str, int]:
    """How many decimals each currency has; `overrides` are a provider's own.

    >>> exponents()["JPY"], exponents()["EUR"], exponents({"ISK": 2})["ISK"]
    (0, 2, 2)
    """
    return {**dict.fromkeys(HUNDREDTHS, 2), **EXPONENTS, **overrides}
