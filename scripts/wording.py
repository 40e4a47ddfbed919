#!/usr/bin/env python3
"""Checks that names of Go, without tests, and comments say what they mean; prints shares for each component.

A name of a function is a verb with its object; a comment has nouns rather than pronouns. The shares only point at
passages, so their bounds are above what a reader needs.
"""
import re
import subprocess
import sys
from collections import Counter

PRONOUNS = set('''it its that those these this one ones what which them they others other such so there then whose who
whom another either neither'''.split())
MAX_ONE_WORD = 0.40  # names of functions that have one word
MAX_PRONOUNS = 0.06  # of the words of a comment, on average
MAX_DENSE = 0.02  # comments of which a fifth or more are pronouns
SHORTEST = 14  # words; shorter comments aren't counted
COMMON = 40  # words of names that DEVELOPER.md must explain
PLAIN = set('''address all change cmd config error file format get has json list main may name new next print string text
valid value'''.split())  # words that Go or the dictionary explains


class Shares:
    def __init__(self):
        self.names, self.densities = [], []

    def one_word(self):
        return sum(len(split(n)) == 1 for n in self.names) / max(len(self.names), 1)

    def pronouns(self):
        return sum(self.densities) / max(len(self.densities), 1)

    def dense(self):
        return sum(d >= 0.2 for d in self.densities) / max(len(self.densities), 1)


def split(name):
    return re.findall(r'[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+', name)


def singular(word):
    return word[:-1] if len(word) > 4 and re.search('[^s]s$', word) else word


def read(text, shares, names):
    for comment in re.findall(r'(?:^\s*// .*\n(?:^\s*//.*\n)*)', text, re.M):
        words = re.findall(r"[A-Za-z'_]+", re.sub(r'^\s*//', '', comment, flags=re.M))
        if len(words) >= SHORTEST:
            shares.densities.append(sum(w.lower() in PRONOUNS for w in words) / len(words))
    if names:
        shares.names += re.findall(r'^func (?:\([^)]*\) )?(\w+)', text, re.M)


total, components, words = Shares(), {}, Counter()
for path in subprocess.check_output(['git', 'ls-files', '*.go'], text=True).split():
    if '/testdata/' in path:
        continue
    with open(path, encoding='utf-8') as file:
        text = file.read()
    if re.search(r'^// Code generated', text, re.M):
        continue
    tests = path.endswith('_test.go')
    component = components.setdefault(path.split('/')[0] + (' tests' if tests else ''), Shares())
    for shares in [component] if tests else [component, total]:
        read(text, shares, names=not tests)
    if not tests:
        names = re.findall(r'^(?:func (?:\([^)]*\) )?|type )(\w+)', text, re.M)
        words.update(singular(w.lower()) for n in names for w in split(n) if len(w) > 2)

print(f'{"":20}one-word names  pronouns  comments with a fifth or more')
beyond = []
for name, shares in [*sorted(components.items()), ('all', total)]:
    print(f'{name:20}{shares.one_word():14.0%}{shares.pronouns():10.1%}{shares.dense():31.1%}')
    if shares.one_word() > MAX_ONE_WORD or shares.pronouns() > MAX_PRONOUNS or shares.dense() > MAX_DENSE:
        beyond.append(name)
if beyond:
    sys.exit(f'{", ".join(beyond)}: at most {MAX_ONE_WORD:.0%}, {MAX_PRONOUNS:.0%} and {MAX_DENSE:.0%} are allowed: '
             'name functions by a verb and its object, and use nouns in comments')

with open('DEVELOPER.md', encoding='utf-8') as file:
    rows = re.findall(r'^\| (.*?) \|', file.read().partition('## Words')[2], re.M)
explained = {singular(w) for row in rows for w in row.split(', ')}
missing = [w for w, _ in words.most_common() if w not in PLAIN][:COMMON]
missing = [w for w in missing if w not in explained]
if missing:
    sys.exit(f'DEVELOPER.md, Words: no row for {", ".join(missing)}, which many names have')
