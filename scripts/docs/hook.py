"""A hook of MkDocs, which reads Markdown in some places otherwise than GitHub."""
import os
import re
import subprocess

from mkdocs.exceptions import PluginError

root = os.path.join(os.path.dirname(__file__), "..", "..")
commit = subprocess.check_output(["git", "-C", root, "rev-parse", "HEAD"], text=True).strip()
link = re.compile(r"(?<=\]\()[^()\s#:]+")
code = re.compile(r"<pre.*?</pre>", re.DOTALL)
item = re.compile(r"^\s*(?:-|1\.) .*", re.MULTILINE)


def on_page_markdown(markdown, page, config, files):
    """Lets links to files that are no pages lead to the repository, at the commit of the site."""

    def resolve(match):
        path = os.path.normpath(os.path.join(os.path.dirname(page.file.src_uri), match[0]))
        if files.get_file_from_path(path) or not os.path.exists(os.path.join(root, path)):
            return match[0]
        kind = "tree" if os.path.isdir(os.path.join(root, path)) else "blob"
        return f"{config.repo_url}/{kind}/{commit}/{path}"

    return link.sub(resolve, markdown)


def on_page_content(html, page, config, files):
    """Refuses items of lists that became text, as they have no empty line or too few spaces before them."""
    if lost := item.search(code.sub("", html)):
        raise PluginError(f"{page.file.src_uri}: no item of a list: {lost[0].strip()}")
