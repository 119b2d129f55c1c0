#!/usr/bin/env bash
# Builds the manual and the API reference as a site in build/site: installs what is missing (packages of Debian, or where there are
# none mkdocs-material into a virtual environment), gathers the pages, runs doxygen and mkdocs, and checks that a page needs no network.
# Needs no network where the packages are installed.
usage='usage: tools/docs.sh [--serve]

Builds the manual and the API reference in build/site; open build/site/index.html. --serve: shows them at http://127.0.0.1:8000 then.'
serve=
case $* in
  "") ;;
  --serve) serve=yes ;;
  --help) printf '%s\n' "$usage" && exit 0 ;;
  *) printf 'tools/docs.sh: unknown argument %s\n%s\n' "$1" "$usage" >&2 && exit 2 ;;
esac
source "$(dirname -- "${BASH_SOURCE[0]}")/setup.sh"

install_missing python3 doxygen mkdocs mkdocs-material
mkdocs=/usr/bin/mkdocs
if ! [ -x $mkdocs ]; then
  tools=build/docs-tools
  mkdocs=$tools/bin/mkdocs
  if ! [ -x $mkdocs ]; then
    say "installing mkdocs-material in $tools"
    { python3 -m venv $tools && $tools/bin/pip install --quiet 'mkdocs-material>=8.2,<10'; } ||
      { rm -rf $tools && die "mkdocs-material cannot be installed (see above)"; }
  fi
fi

# The pages where they link each other, and the files that they link.
pages=build/manual
rm -rf $pages
mkdir -p $pages
cp --parents README.md CONTRIBUTING.md CHANGELOG.md LICENSE docs/*.md docs/site.css $pages
for page in README.md CONTRIBUTING.md CHANGELOG.md docs/*.md; do
  { grep -oE '\]\([^)#: ]+\)' "$page" || true; } | sed 's/^](//; s/)$//' | while read -r link; do
    file=$(realpath --relative-to=. -- "$(dirname -- "$page")/$link")
    case $file in README.md | CONTRIBUTING.md | CHANGELOG.md | docs/*.md) continue ;; esac  # gathered above
    [ -f "$file" ] || die "$page links $link, which is not a file"
    cp --parents -- "$file" $pages
  done
done

# In the code of a table GitHub wants \| where mkdocs wants |.
sed -i 's/\\|/|/g' $pages/*.md $pages/docs/*.md

say "the API reference: doxygen"
{ cat tools/Doxyfile && printf 'OUTPUT_DIRECTORY = %s\nGENERATE_HTML = YES\nHTML_OUTPUT = api\nINPUT_FILTER = "awk -f tools/areas.awk"\n' $pages; } |
  doxygen - >/dev/null
say "the manual: mkdocs"
# mkdocs before 1.5 has no such validation of links, and the tests of the repository check the links.
config=mkdocs.yml
if [[ $($mkdocs --version) == *"version 1."[0-4]* ]]; then
  config=build/mkdocs.yml
  sed '/^validation:/,/^[^ ]/{/^validation:/d;/^ /d}; s#^docs_dir: build/#docs_dir: #; s#^site_dir: build/#site_dir: #' mkdocs.yml >$config
fi
NO_MKDOCS_2_WARNING=1 $mkdocs build --quiet --config-file $config

if grep -rnE --include='*.html' '<(script|img|link[^>]*rel="(stylesheet|preconnect)")[^>]*"(https?:)?//' build/site | grep -v '/api/'; then
  die "a page fetches from the network (see above)"
fi
say "built build/site/index.html"
if [ -n "$serve" ]; then exec python3 -m http.server --bind 127.0.0.1 --directory build/site 8000; fi
