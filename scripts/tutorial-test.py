#!/usr/bin/env python3
"""Runs docs/tutorial.md in this clone, word by word.

Indented lines are commands. A block "text" after them has all that they print, where "…" stands for any text.
"""
import os
import re
import signal
import subprocess
import sys
import tempfile

LIMIT = 900  # seconds, on a busy machine that has built nothing
END = '-- end of the block --'

os.chdir(os.path.join(os.path.dirname(__file__), '..'))
with open('docs/tutorial.md', encoding='utf-8') as file:
    page = file.read()
blocks = [(re.sub('(?m)^    ', '', commands), want) for commands, want in
          re.findall(r'((?:^    [^\n]*\n(?:\n(?=    ))?)+)(?:\n```text\n(.*?)```\n)?', page, re.M | re.S)]
if not blocks or len([want for _, want in blocks if want]) != page.count('\n```text\n'):
    sys.exit('tutorial-test: want commands before each block "text" of docs/tutorial.md')

# The output is a file: what runs in the background may outlive the shell.
with tempfile.TemporaryFile('w+', encoding='utf-8') as output:
    script = ''.join(f"{commands}\necho '{END}'\n" for commands, _ in blocks)
    shell = subprocess.Popen(['bash', '-euo', 'pipefail', '-c', script], stdin=subprocess.DEVNULL, stdout=output,
                             stderr=subprocess.STDOUT, start_new_session=True)
    try:
        status = shell.wait(LIMIT)
    except subprocess.TimeoutExpired:
        status = f'still running after {LIMIT} s'
    finally:
        try:
            os.killpg(shell.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    output.seek(0)
    printed = output.read().split(END + '\n')

wrong = len(printed) <= len(blocks)
if wrong:
    print(f'tutorial-test: status {status} in:\n{blocks[len(printed) - 1][0]}\nwhich printed:\n{printed[-1]}')
for (commands, want), got in zip(blocks, printed):
    pattern = '.*'.join(re.escape(part) for part in want.split('…'))
    if want and not re.fullmatch(pattern, got.replace('\r', '')):
        wrong = True
        print(f'tutorial-test: {commands}\nwant:\n{want}\ngot:\n{got}')
sys.exit(wrong)
