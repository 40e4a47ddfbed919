#!/usr/bin/env python3
"""Checks that names and comments of Go, without tests, say what they mean; prints shares for each component.

A name of a function is a verb with its object; a comment has nouns rather than pronouns. The shares only point at
passages, so their bounds are above what a reader needs.
"""
import re
import subprocess
import sys

PRONOUNS = set('''it its that those these this one ones what which them they others other such so there then whose who
whom another either neither'''.split())
MAX_ONE_WORD = 0.40  # names of functions that have one word
MAX_PRONOUNS = 0.06  # of the words of a comment, on average
MAX_DENSE = 0.02  # comments of which a fifth or more are pronouns
SHORTEST = 14  # words; shorter comments aren't counted


class Shares:
    def __init__(self):
        self.names, self.densities = [], []

    def one_word(self):
        return sum(len(re.findall(r'[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+', n)) == 1 for n in self.names) / len(self.names)

    def pronouns(self):
        return sum(self.densities) / max(len(self.densities), 1)

    def dense(self):
        return sum(d >= 0.2 for d in self.densities) / max(len(self.densities), 1)


def read(text, shares):
    for comment in re.findall(r'(?:^\s*// .*\n(?:^\s*//.*\n)*)', text, re.M):
        words = re.findall(r"[A-Za-z'_]+", re.sub(r'^\s*//', '', comment, flags=re.M))
        if len(words) >= SHORTEST:
            shares.densities.append(sum(w.lower() in PRONOUNS for w in words) / len(words))
    shares.names += re.findall(r'^func (?:\([^)]*\) )?(\w+)', text, re.M)


total, components = Shares(), {}
for path in subprocess.check_output(['git', 'ls-files', '*.go'], text=True).split():
    if path.endswith('_test.go') or '/testdata/' in path:
        continue
    with open(path, encoding='utf-8') as file:
        text = file.read()
    if re.search(r'^// Code generated', text, re.M):
        continue
    for shares in (total, components.setdefault(path.split('/')[0], Shares())):
        read(text, shares)

print(f'{"":14}one-word names  pronouns  comments with a fifth or more')
beyond = []
for name, shares in [*sorted(components.items()), ('all', total)]:
    print(f'{name:14}{shares.one_word():14.0%}{shares.pronouns():10.1%}{shares.dense():31.1%}')
    if shares.one_word() > MAX_ONE_WORD or shares.pronouns() > MAX_PRONOUNS or shares.dense() > MAX_DENSE:
        beyond.append(name)
if beyond:
    sys.exit(f'{", ".join(beyond)}: at most {MAX_ONE_WORD:.0%}, {MAX_PRONOUNS:.0%} and {MAX_DENSE:.0%} are allowed: '
             'name functions by a verb and its object, and use nouns in comments')
