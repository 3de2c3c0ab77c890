"""Sphinx settings. ``make docs`` builds with ``-W``: a warning is an error."""

import kova_rl
from kova_rl import covariance, evolution
from kova_rl.filter import compatibility

project = "kova-rl"
author = "The kova-rl developers"
copyright = f"2026, {author}"
version = release = kova_rl.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
]
exclude_patterns = ["_build"]
smartquotes_action = "D"  # dashes only: a prime stays a prime

html_theme = "furo"
html_title = f"{project} {version}"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
html_copy_source = False

myst_enable_extensions = ["colon_fence", "dollarmath", "substitution"]

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
