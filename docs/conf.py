"""Configuration of Sphinx; `make docs` (scripts/build_site.py) assembles and builds the site."""

project = html_title = "Remembering Transformer"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
root_doc = "index"

myst_heading_anchors = 4  # the anchors of GitHub

# Names in backticks become links where they are documented.
default_role = "py:obj"
autodoc_class_signature = "separated"
autodoc_member_order = "bysource"
autodoc_type_aliases = {"ImagesLike": "ImagesLike", "LabelsLike": "LabelsLike"}
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80
napoleon_use_ivar = True
napoleon_use_rtype = False

html_theme = "furo"
html_static_path = ["assets"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#00695c", "color-brand-content": "#00695c"},
    "dark_css_variables": {"color-brand-primary": "#4db6ac", "color-brand-content": "#4db6ac"},
}
copybutton_selector = "div:not(.highlight-text) > div.highlight > pre"
