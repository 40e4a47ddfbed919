"""Secrets of devices, and their hashes: docs/redis-contract.md, section Hashes."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
import zlib
from typing import Optional, Union

import bcrypt

from .errors import InvalidError
from .keys import check_device_id

DEFAULT_COST = 12
MAX_SECRET = 72
_FORM = re.compile("gh_[A-Z2-7]{26}_[0-9a-f]{8}")
_SECRET = re.compile(rb"(?!\xef\xbb\xbf)[^\x00- \x7f]([^\x00-\x1f\x7f]*[^\x00- \x7f])?")
_BASE32 = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"


class Pepper:
    """A key of the scheme gh1, from the content of its file: at least 32 random bytes. Redis never has it."""

    def __init__(self, content: Union[bytes, str]) -> None:
        key = (content.encode() if isinstance(content, str) else content).strip()
        if not 32 <= len(key) <= 4096:
            raise InvalidError(f"a pepper of {len(key)} bytes, want 32 to 4096: openssl rand -hex 32 makes one")
        self._key = key
        self.id = self._mac(b"gatehouse gh1, id", b"", b"")[:8].hex()

    def __repr__(self) -> str:
        return f"Pepper({self.id})"

    def _mac(self, purpose: bytes, salt: bytes, secret: bytes) -> bytes:
        return hmac.new(self._key, purpose + b"\x00" + salt + secret, hashlib.sha256).digest()

    def hash(self, secret: str) -> str:
        """A gh1 hash of a generated secret."""
        if not is_generated(secret):
            raise InvalidError("only generated secrets can be stored as gh1: see new_secret")
        salt = secrets.token_bytes(16)
        return f"$gh1${self.id}${_text(salt)}${_text(self._mac(b'gatehouse gh1, hash', salt, secret.encode()))}"

    def matches(self, hash: str, secret: str) -> bool:
        """Whether a gh1 hash is one of the secret under this pepper."""
        parts = hash.split("$")
        if len(parts) != 5 or parts[1] != "gh1" or parts[2] != self.id or not is_generated(secret):
            return False
        salt = base64.b64decode(parts[3].replace(".", "+") + "==")
        want = _text(self._mac(b"gatehouse gh1, hash", salt, secret.encode()))
        return hmac.compare_digest(want, parts[4].replace(".", "+"))


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode().rstrip("=")


def new_secret() -> str:
    """A new secret with 130 random bits: ``gh_…`` with a checksum."""
    secret = "gh_" + "".join(secrets.choice(_BASE32) for _ in range(26))
    return f"{secret}_{zlib.crc32(secret.encode()):08x}"


def is_generated(secret: str) -> bool:
    """Whether a secret has the form of new_secret, and its checksum is right."""
    return bool(_FORM.fullmatch(secret)) and secret[30:] == f"{zlib.crc32(secret[:29].encode()):08x}"


def api_key(id: str, secret: str) -> str:
    """The API key of a device with a generated secret."""
    check_device_id(id)
    if not is_generated(secret):
        raise InvalidError("only a generated secret has an API key: see new_secret")
    return f"gh_{id}_{secret[3:]}"


def check_secret(id: str, secret: str) -> None:
    """Raises InvalidError if no client can send the secret, without quoting it."""
    data = secret.encode("utf-8", "surrogatepass")
    if not 1 <= len(data) <= MAX_SECRET:
        raise InvalidError(f"secret of {id!r}: {len(data)} bytes, want 1 to {MAX_SECRET}")
    if not _SECRET.fullmatch(data):
        raise InvalidError(
            f"secret of {id!r}: has a control character, a blank at an end, or a byte order mark, which no header can "
            "carry"
        )
    if secret.startswith("gh_") and not is_generated(secret):
        raise InvalidError(f"secret of {id!r}: begins with gh_, but its checksum is wrong")


def hash_secret(secret: str, cost: int = DEFAULT_COST, pepper: Optional[Pepper] = None) -> str:
    """The hash of a secret: gh1 with a pepper, otherwise bcrypt, which takes some 0.2 s."""
    if pepper is not None:
        return pepper.hash(secret)
    if not 4 <= cost <= 15:
        raise InvalidError(f"cost {cost}: is out of 4 to 15")
    return bcrypt.hashpw(secret.encode(), bcrypt.gensalt(cost)).decode()


def matches(hash: str, secret: str, pepper: Optional[Pepper] = None) -> bool:
    """Whether a hash of bcrypt or, with its pepper, gh1 is one of the secret; False for other schemes."""
    if hash.startswith("$2"):
        return bcrypt.checkpw(secret.encode(), hash.encode())
    return pepper is not None and pepper.matches(hash, secret)
