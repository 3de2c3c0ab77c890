"""Sphinx settings. ``make docs`` builds with ``-W``: a warning is an error."""

import re

from docutils import nodes
from docutils.utils.math import MathError, latex2mathml
from sphinx.util import logging

import kova_rl
from kova_rl import covariance, evolution
from kova_rl.filter import compatibility

logger = logging.getLogger(__name__)

project = "kova-rl"
author = "The kova-rl developers"
copyright = f"2026, {author}"
version = release = kova_rl.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build"]
smartquotes_action = "D"  # dashes only: a prime stays a prime

html_theme = "furo"
html_title = f"{project} {version}"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
html_copy_source = False
html_math_renderer = "mathml"

myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence", "dollarmath", "substitution"]

# The examples of the gallery are run when the site is built, and not again until they change.
sphinx_gallery_conf = {
    "examples_dirs": "../examples/gallery",
    "gallery_dirs": "gallery",
    "filename_pattern": "plot_",
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "remove_config_comments": True,
    "show_memory": False,
    "show_signature": False,
    "write_computation_times": False,
}

napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_custom_sections = ["Reference"]

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_inherit_docstrings = False  # what a member only overrides is explained once, on its base class
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_type_aliases = {"Prior": "kova_rl.filter.covariance.base.Prior", "State": "kova_rl.filter.step.State"}
python_display_short_literal_types = True
python_maximum_signature_line_length = 60
python_use_unqualified_type_names = True


def compatibility_table():
    """What ``Kova`` allows, in Markdown: a row for each evolution, a column for each covariance."""
    structures = compatibility.members(covariance, covariance.Covariance)
    rows = [["", *(f"`{structure.__name__}`" for structure in structures)], ["---"] * (len(structures) + 1)]
    for kind in compatibility.members(evolution, evolution.Evolution):
        limits = [compatibility.limit(structure, kind) for structure in structures]
        cells = ["yes" if most is None else f"blocks up to {most}" if most else "no" for most in limits]
        rows.append([f"`{kind.__name__}`", *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


myst_substitutions = {"compatibility": compatibility_table()}


SPELLINGS = {
    r"\\([bB]ig)([(\[])": r"\\\1l\2",
    r"\\([bB]ig)([)\]])": r"\\\1r\2",
    r"frac(\d)(\d)": r"frac{\1}{\2}",
}
"""LaTeX that Docutils does not read, or misreads, and how it reads it."""
MARKS = {">'<": ">\N{PRIME}<", '<mo accent="true">_</mo>': '<mo class="overline"></mo>'}
"""An apostrophe is a prime; no font stretches an overline, so that the style sheet draws it."""


def write_mathml(translator, node):
    """Formulas become MathML in the build, which browsers draw: a page needs neither script nor network."""
    tex, block = node.astext(), isinstance(node, nodes.math_block)
    for pattern, spelling in SPELLINGS.items():
        tex = re.sub(pattern, spelling, tex)
    try:
        drawn = latex2mathml.tex2mathml(tex, as_block=block)
    except MathError as error:
        logger.warning("no MathML of %s: %s", tex, error, location=node)
        drawn = translator.encode(tex)
    for mark, better in MARKS.items():
        drawn = drawn.replace(mark, better)
    tag = "div" if block else "span"
    translator.body.append(f"{translator.starttag(node, tag, '', CLASS='math notranslate')}{drawn}</{tag}>")
    raise nodes.SkipNode


def name_aliases(app, what, name, obj, options, signature, returned):
    """A type alias inside a union is shown by its name, as it is alone."""
    alias = r"TypeAliasForwardRef\('([\w.]+)'\)"
    return tuple(text and re.sub(alias, r"\1", text) for text in (signature, returned))


def setup(app):
    """Sphinx calls this."""
    app.connect("autodoc-process-signature", name_aliases)
    app.add_html_math_renderer("mathml", (write_mathml, None), (write_mathml, None))
