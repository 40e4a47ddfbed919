"""Prints hashes of other programs for TestHashesOfOthers: made by, secret, hash, separated by tabs.

    python3 -m venv v && v/bin/pip install django werkzeug passlib argon2-cffi 'bcrypt<4.1'
    apt-get install mosquitto apache2-utils dovecot-core    # mosquitto_passwd 2.0, htpasswd, doveadm
    v/bin/python hashes.py > hashes.tsv
"""

import hashlib
import subprocess
import tempfile

import django.conf
from argon2 import PasswordHasher, Type
from django.contrib.auth import hashers
from passlib import hash as passlib
from werkzeug.security import generate_password_hash

SECRET = "corrëct horse"
django.conf.settings.configure()


def show(maker, text, secret=SECRET):
    print(maker, secret, text, sep="\t")


for method in ("pbkdf2:sha256:1000", "pbkdf2:sha512:1000", "scrypt:1024:8:1", "scrypt:32768:8:1", "pbkdf2:sha1:1000"):
    show("werkzeug " + method, generate_password_hash(SECRET, method))

for name, rounds in (
    ("PBKDF2PasswordHasher", 1000), ("PBKDF2SHA1PasswordHasher", 1000), ("Argon2PasswordHasher", 0),
    ("BCryptPasswordHasher", 4), ("BCryptSHA256PasswordHasher", 4), ("ScryptPasswordHasher", 0),
    ("MD5PasswordHasher", 0),
):
    hasher = getattr(hashers, name)()
    if rounds:
        hasher.iterations = hasher.rounds = rounds
    show("django " + name, hasher.encode(SECRET, hasher.salt()))
show("django unusable", hashers.make_password(None))

for name, settings in (
    ("pbkdf2_sha256", {"rounds": 1000}), ("pbkdf2_sha512", {"rounds": 1000}), ("bcrypt", {"rounds": 4}),
    ("scrypt", {"rounds": 10}), ("ldap_pbkdf2_sha256", {"rounds": 1000}), ("ldap_pbkdf2_sha512", {"rounds": 1000}),
    ("ldap_bcrypt", {"rounds": 4}), ("pbkdf2_sha1", {"rounds": 1000}), ("bcrypt_sha256", {"rounds": 4}),
    ("ldap_salted_sha1", {}), ("ldap_salted_sha256", {}), ("ldap_md5", {}), ("sha512_crypt", {"rounds": 1000}),
    ("sha256_crypt", {"rounds": 1000}), ("md5_crypt", {}), ("apr_md5_crypt", {}), ("ldap_plaintext", {}),
    ("hex_sha256", {}),
    ("grub_pbkdf2_sha512", {"rounds": 1000}), ("atlassian_pbkdf2_sha1", {}),
):
    show("passlib " + name, getattr(passlib, name).using(**settings).hash(SECRET))

for kind in (Type.ID, Type.I, Type.D):
    show("argon2-cffi " + kind.name, PasswordHasher(1, 64, 1, type=kind).hash(SECRET))

with tempfile.NamedTemporaryFile("r") as file:
    for flags in ([], ["-I", "1000"], ["-H", "sha512"]):
        subprocess.run(["mosquitto_passwd", "-b", "-c", *flags, file.name, "a", SECRET], check=True)
        with open(file.name) as made:
            show("mosquitto_passwd " + " ".join(flags), made.read().strip().partition(":")[2])

for flags in ("-nbBC4", "-nbm", "-nbs", "-nb2", "-nb5", "-nbd"):
    made = subprocess.run(["htpasswd", flags, "a", "secret"], check=True, capture_output=True, text=True)
    show("htpasswd " + flags, made.stdout.strip().partition(":")[2], "secret")

for scheme in ("BLF-CRYPT", "ARGON2ID", "ARGON2I", "PBKDF2", "SSHA512", "SHA512-CRYPT", "PLAIN"):
    rounds = ["-r", "5"] if scheme in ("BLF-CRYPT", "ARGON2ID", "ARGON2I") else []
    command = ["doveadm", "-O", "pw", "-s", scheme, "-p", SECRET, *rounds]
    show("doveadm " + scheme, subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())

# EMQX's export has the digest and the salt in columns of their own.
show("emqx sha256", hashlib.sha256(b"salt" + SECRET.encode()).hexdigest())
