#!/bin/sh
# Installs Gradian. `usage`, below, says how it is used.
#
# What lies where:
#   ~/.gradian/install/made            what was made outside that folder, each entry written before the thing is made
#   ~/.gradian/install/envs/<time>/    one installation: venv/, the start script `gradian`, the file `source`
#
# An installation is built whole in a folder of its own; renaming one link puts it in the place of the last one. So it
# appears at once or not at all, and the last one works until then. There is no lock: the later of two runs wins.
#
# Only functions until the last line, so that a download cut short runs nothing.

set -eu

usage() {
    cat <<'END'
Installs Gradian into ~/.gradian, apart from every other Python environment, and links `gradian` into ~/.local/bin.

  curl -fsSL https://raw.githubusercontent.com/gradian-ai/gradian/main/install.sh | sh
  sh install.sh            the same
  sh install.sh --local    the checkout in which this file lies, editable

A second run updates. Settings are environment variables, since through a pipe `sh` takes flags for its own:

  GRADIAN_CPU=1            torch without CUDA, whatever the hardware
  GRADIAN_UNSLOTH=1        with the unsloth trainer, for an NVIDIA GPU
  GRADIAN_EXTRAS=a,b       with extras: train, cluster, demo, ekfac
  GRADIAN_REF=v0.1.0       a tag, branch or commit rather than main
  GRADIAN_UNINSTALL=1      remove all that was installed, and nothing else
  GRADIAN_HOME, GRADIAN_BIN    instead of ~/.gradian and ~/.local/bin
  GRADIAN_PYTHON           the Python 3.10, 3.11 or 3.12 to use
  GRADIAN_NO_RC=1          leave the shell's start file alone; the PATH line is only shown
  GRADIAN_REPO             another repository, an address or a folder
  TORCH_INDEX_URL          the package index for torch alone, as for the Makefile

pip is configured as everywhere (pip.conf, PIP_INDEX_URL, ...), but keeps no downloads unless PIP_CACHE_DIR is set.
END
}

say() { printf '%s\n' "$*" >&2; }

# What is wrong, then a line each for what was found and what to do.
fail() {
    say "install.sh: $1"
    shift
    for line; do say "  $line"; done
    exit 1
}

is_on() { case ${1:-} in '' | 0 | no | false) return 1 ;; esac; }

quoted() { printf "'%s'" "$(printf '%s' "$1" | sed "s/'/'\\\\''/g")"; }

# ---- the journal of what was made ------------------------------------------------------------------------------------

# Whether a file holds a text; a grep that cannot say ends the run. Options of grep may stand before.
holds() {
    status=0
    grep -qF "$@" || status=$?
    [ "$status" -lt 2 ] || exit 1
    return "$status"
}

is_recorded() { holds -x -e "$*" "$made"; }

record() { is_recorded "$*" || printf '%s\n' "$*" >>"$made"; }

recorded() { [ ! -f "$made" ] || sed -n "s/^$1 //p" "$made"; }

# The folders of a path that do not exist, the outermost first.
missing_folders() (
    [ ! -d "$1" ] || exit 0
    missing_folders "$(dirname "$1")"
    printf '%s\n' "$1"
)

make_folder() {
    missing_folders "$1" | while IFS= read -r folder; do
        record "folder $folder" && mkdir "$folder" || exit 1
    done
}

# What a run leaves that was killed before it had its journal.
remove_unbegun() {
    [ -d "$root" ] && [ ! -f "$made" ] || return 0
    # Another run may be about to write it.
    sleep 1
    [ ! -f "$made" ] || return 0
    rm -f "$made".[0-9]*
    rmdir "$root" "$home" 2>/dev/null || :
}

make_root() {
    remove_unbegun
    if [ ! -f "$made" ]; then
        [ ! -e "$root" ] || fail "$root exists, but this installer did not make it" \
            "Move it away, or choose another folder: GRADIAN_HOME=..."
        new=$(missing_folders "$root")
        if ! start_journal; then
            rm -f "$made.$$"
            remove_folders "$(printf '%s\n' "$new" | LC_ALL=C sort -r)"
            fail "$root cannot be made" "Can you write there, and has the disk room? Another folder: GRADIAN_HOME=..."
        fi
    fi
}

start_journal() {
    mkdir -p "$root" && {
        printf '%s\n' "What the Gradian installer made outside this folder; uninstalling removes it." &&
            printf '%s\n' "$new" | sed 's/^/folder /'
    } >"$made.$$" && mv -f "$made.$$" "$made"
}

is_ours() {
    [ -L "$1" ] || return 1
    target=$(readlink "$1") || exit 1
    case $target in "$root/envs/"*) ;; *) return 1 ;; esac
}

is_linked() {
    recorded link | (
        while IFS= read -r link; do
            if [ "$(readlink "$link" 2>/dev/null)" = "$1/gradian" ]; then exit 0; fi
        done
        exit 1
    )
}

remove_folders() {
    printf '%s\n' "$1" | while IFS= read -r folder; do
        [ -z "$folder" ] || rmdir "$folder" 2>/dev/null || :
    done
}

# The journal goes last but for the folders around it: what is cut short, the next run finishes.
remove_everything() {
    links=$(recorded link)
    files=$(recorded rc)
    built=$(recorded built)
    folders=$(recorded folder)
    folders=$(printf '%s\n' "$folders" | LC_ALL=C sort -r)
    printf '%s\n' "$links" | while IFS= read -r link; do
        if is_ours "$link"; then rm -f "$link"; fi
    done
    # Before files are written anew: the disk may be full.
    rm -rf "$root/envs"
    printf '%s\n' "$files" | while IFS= read -r file; do
        [ ! -f "$file" ] || restore_start_file "$file"
    done
    printf '%s\n' "$built" | while read -r sum size file; do
        if [ -f "$file" ] && [ "$(cksum <"$file")" = "$sum $size" ]; then rm -f "$file"; fi
    done
    remove_folders "$folders"
    rm -rf "$root"
    remove_folders "$folders"
}

# ---- the shell's start file ------------------------------------------------------------------------------------------

start_file() {
    case ${SHELL:-} in
    */bash) if [ "$(uname -s)" = Darwin ]; then file=.bash_profile; else file=.bashrc; fi ;;
    */zsh) file=.zshrc ;;
    */fish) file=fish/config.fish ;;
    *) file=.profile ;;
    esac
    case $file in
    .zshrc) printf '%s\n' "${ZDOTDIR:-$HOME}/$file" ;;
    fish/*) printf '%s\n' "${XDG_CONFIG_HOME:-$HOME/.config}/$file" ;;
    *) printf '%s\n' "$HOME/$file" ;;
    esac
}

path_line() {
    case $1 in
    *.fish) printf '%s' "set -gx PATH $(quoted "$bin") \$PATH" ;;
    *) printf '%s' "export PATH=$(quoted "$bin"):\"\$PATH\"" ;;
    esac
}

MARK='# added by the Gradian installer'

add_to_start_file() {
    [ -e "$1" ] || record "rc-new $1" || return
    record "rc $1" && make_folder "$(dirname "$1")" || return
    last=
    [ ! -s "$1" ] || last=$(tail -c 1 "$1") || return
    if [ -n "$last" ]; then
        record "rc-newline $1" && echo >>"$1" || return
    fi
    printf '%s %s\n' "$2" "$MARK" >>"$1"
}

restore_start_file() {
    holds -e "$MARK" "$1" || return 0
    copy=$1.gradian
    if ! without_our_line "$1" "$copy" || ! replace "$1" "$copy"; then
        rm -f "$copy"
        fail "$1 cannot be rewritten" "Take out its line that ends in \`$MARK\`, and run this again."
    fi
    if [ ! -s "$1" ] && is_recorded "rc-new $1"; then rm -f "$1"; fi
}

without_our_line() {
    # A copy first, for the mode.
    cp -p "$1" "$2" && sed "/ $MARK\$/d" "$1" >"$2" && last=$(tail -n 1 "$1") || return
    case $last in *"$MARK") ;; *) return 0 ;; esac
    if is_recorded "rc-newline $1"; then
        text=$(cat "$2") && printf '%s' "$text" >"$2"
    fi
}

# A symbolic link stays one.
replace() { if [ -L "$1" ]; then cat "$2" >"$1" && rm -f "$2"; else mv -f "$2" "$1"; fi; }

put_on_path() {
    case ":$PATH:" in *":$bin:"*) return ;; esac
    rc=$(start_file)
    line=$(path_line "$rc")
    if [ -f "$rc" ] && holds -e "$line $MARK" "$rc"; then
        say "New shells find \`gradian\` through $rc. For this one:"
    elif is_on "${GRADIAN_NO_RC:-}"; then
        say "$bin is not on PATH. Add this line to $rc:"
    elif (add_to_start_file "$rc" "$line"); then
        say "$bin was not on PATH: one line was added to $rc. For this shell:"
    else
        say "$bin is not on PATH, and $rc cannot be written. Add this line to your shell's start file:"
    fi
    say "  $line"
}

# ---- processes -------------------------------------------------------------------------------------------------------

# The numbers of the processes that run from a folder.
users_of() {
    if [ -d /proc/self ]; then
        # Without the path among its arguments, or grep would find itself.
        [ ! -f "$1/pattern" ] || (cd "$1" && grep -lsF -f pattern /proc/[0-9]*/cmdline) | sed 's/[^0-9]//g'
    else
        ps -A -o pid= -o args= | folder="$1/" awk 'index($0, ENVIRON["folder"]) { print $1 }'
    fi
}

# Whether an installation is being built: by a living process, or within a day on another machine with this home.
is_being_built() {
    [ -f "$1/building" ] && read -r process machine <"$1/building" || return 1
    if [ "$machine" = "$(uname -n)" ]; then
        kill -0 "$process" 2>/dev/null
    else
        [ -z "$(find "$1/building" -mtime +0)" ]
    fi
}

# A command in a session of its own, so that stopping it stops what it started too.
LEAD='import os, signal, sys
os.setsid()
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execvp(sys.argv[1], sys.argv[1:])'

run() {
    "$python" -c "$LEAD" "$@" &
    child=$!
    status=0
    wait "$child" || status=$?
    child=
    return "$status"
}

heed_signals() {
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 143' TERM
}

stop_child() {
    [ -n "$child" ] || return 0
    for signal in TERM KILL; do
        kill -s "$signal" "-$child" 2>/dev/null || kill -s "$signal" "$child" 2>/dev/null || :
        for _ in 1 2 3 4 5; do
            kill -s 0 "-$child" 2>/dev/null || return 0
            sleep 0.2 2>/dev/null || sleep 1
        done
    done
}

# However the run ends: unless an installation is finished, nothing of it stays.
clean_up() {
    status=$?
    trap - EXIT
    trap '' HUP INT TERM
    stop_child
    if [ -n "$build" ]; then
        cd /
        free=$("$python" -c 'import shutil, sys; print(shutil.disk_usage(sys.argv[1]).free >> 20)' "$root") || free=unknown
        case $free in
        ? | ?? | 1??) say "The disk is full, or nearly: $free MiB are free in $home. Make room, or choose another: GRADIAN_HOME=..." ;;
        esac
        rm -rf "$build" 2>/dev/null || { sleep 1 && rm -rf "$build"; } || :
        [ -z "$native" ] || rm -f "$native"
        rmdir "$root/envs" 2>/dev/null || :
        if [ ! -d "$root/envs" ]; then
            remove_everything
            say "Nothing was installed, and nothing is left of this run."
        else
            say "What was installed before is unchanged."
        fi
    fi
    exit "$status"
}

# ---- the steps of an installation ------------------------------------------------------------------------------------

# Run by any Python from 2.6 on. Prints what keeps Gradian from using it, or nothing.
PROBE='
import sys
found = "Python %d.%d" % sys.version_info[:2]
def obstacle():
    if not (3, 10) <= sys.version_info[:2] <= (3, 12):
        return "is " + found
    import platform, struct, sysconfig
    if struct.calcsize("P") != 8:
        return "is a 32-bit Python, for which there is no torch"
    if "musl" in (sysconfig.get_config_var("HOST_GNU_TYPE") or ""):
        return "is built on musl, for which there is no torch: take a system with glibc"
    if sys.platform == "darwin" and platform.machine() == "x86_64":
        return "runs on an Intel Mac (or emulates one), for which there is no recent torch"
    for module in "venv", "ensurepip", "ssl":
        try:
            __import__(module)
        except ImportError:
            return "is %s without the module %s (on Debian and Ubuntu: apt install python%d.%d-venv)" % (
                (found, module) + sys.version_info[:2])
print(obstacle() or "")
'

choose_python() {
    refused=
    for python; do
        python=$(command -v "$python" 2>/dev/null) || continue
        case $python in /*) ;; *) python=$PWD/$python ;; esac
        obstacle=$("$python" -c "$PROBE" 2>/dev/null) || obstacle="does not run"
        [ -n "$obstacle" ] || return 0
        refused="$refused
    $python $obstacle"
    done
    fail "no Python that Gradian can use" "looked for: $*" "found: ${refused:-none of them on PATH}" \
        "Install Python 3.10, 3.11 or 3.12 with its venv module, or say where it is: GRADIAN_PYTHON=/path/to/python"
}

FETCH='
import sys, tarfile, urllib.request
address, folder = sys.argv[1:]
with urllib.request.urlopen(address, timeout=60) as answer, tarfile.open(fileobj=answer, mode="r|gz") as archive:
    archive.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    print(archive.pax_headers.get("comment", "an unnamed commit"))
'

# Brings the source at `ref` to `source`; sets `commit`.
fetch_source() {
    source=$build/tree
    if command -v git >/dev/null; then
        export GIT_TERMINAL_PROMPT=0
        git init --quiet "$source"
        # Tags, branches and whole commit names can be fetched alone; a shortened name needs the history.
        if run git -C "$source" fetch --quiet --depth 1 "$repo" "$ref" 2>"$build/tmp/git"; then
            name=FETCH_HEAD
        else
            name=$ref
            run git -C "$source" fetch --quiet --tags "$repo" '+refs/heads/*:refs/remotes/origin/*' 2>"$build/tmp/git" || fail \
                "the source cannot be fetched from $repo" "$(cat "$build/tmp/git")" \
                "Is there a network, and is the address right (GRADIAN_REPO)?"
        fi
        commit=$(git -C "$source" rev-parse --verify --quiet "$name^{commit}") ||
            fail "$repo has no tag, branch or commit $ref" "Choose another: GRADIAN_REF=..."
        git -C "$source" checkout --quiet --detach "$commit"
    else
        [ ! -d "$repo" ] || fail "a repository in a folder is fetched by git, which is not here" "folder: $repo" \
            "Install git, or run that folder's own: sh install.sh --local"
        address=$repo/archive/$ref.tar.gz
        run "$python" -c "$FETCH" "$address" "$build/archive" >"$build/tmp/commit" 2>"$build/tmp/error" || fail \
            "the source cannot be fetched from $address" "$(tail -n 1 "$build/tmp/error")" \
            "Is there a network, and is GRADIAN_REF=$ref right? (git is not here; with it, git would fetch.)"
        commit=$(cat "$build/tmp/commit")
        mv "$build/archive"/* "$source"
    fi
    [ -f "$source/pyproject.toml" ] || fail "$repo at $ref holds no Gradian: there is no pyproject.toml"
}

has_gpu() {
    for tool in nvidia-smi /usr/lib/wsl/lib/nvidia-smi; do
        if "$tool" -L 2>/dev/null | grep -q '^GPU'; then return; fi
    done
    return 1
}

# What, then pip's arguments.
pip_install() {
    what=$1
    shift
    run "$build/venv/bin/python" -m pip install "$@" || pip_failed "$what"
}

pip_failed() {
    what=$1
    [ -z "${2:-}" ] || say "$2"
    fail "$what could not be installed" "pip says why, above. If it found no network or no index: PIP_INDEX_URL, PIP_PROXY and" \
        "PIP_CERT are heeded. If there is no torch for this system, TORCH_INDEX_URL names another index."
}

make_environment() {
    run "$python" -m venv "$build/venv" || fail "no virtual environment could be made in $build" "with: $python -m venv"
    # Older ones cannot install an editable pyproject.toml.
    if "$build/venv/bin/python" -c 'import pip; raise SystemExit(int(pip.__version__.split(".")[0]) >= 22)'; then
        pip_install "a newer pip" --upgrade 'pip>=22'
    fi
}

# By itself and first: installed as another package's dependency it would come from the default index.
install_torch() {
    say "Installing torch, for $hardware..."
    with=
    case ,$extras, in *,cluster,*) with=torchvision ;; esac
    if [ "$constraints" = cpu.txt ] && [ -z "${TORCH_INDEX_URL:-}" ] && [ "$(uname -s)" = Linux ]; then
        # Without the label it would be a CUDA build. Whether an index that pip knows has one with it, only asking tells.
        version=$(sed -n 's/^torch==//p' constraints/cpu.txt)
        run "$build/venv/bin/python" -m pip install --constraint constraints/cpu.txt "torch==$version+cpu" $with \
            2>"$build/tmp/pip" && return
        if grep -q 'from versions: none' "$build/tmp/pip" || ! grep -qF "torch==$version+cpu" "$build/tmp/pip"; then
            pip_failed torch "$(cat "$build/tmp/pip")"
        fi
        ! is_on "${GRADIAN_CPU:-}" || fail "GRADIAN_CPU=1 cannot be done: pip's index has no CPU build of torch $version" \
            "Name the index of PyTorch's CPU builds (pytorch.org shows it under Get Started): TORCH_INDEX_URL=..." \
            "Without GRADIAN_CPU=1 a CUDA build is installed: it runs on the CPU too, and takes several gigabytes."
        say "pip's index has no CPU build of torch, so this is a CUDA build, of several gigabytes; it runs on the CPU too." \
            "To have the other, stop, and name the index of PyTorch's CPU builds: TORCH_INDEX_URL=..."
        constraints=cuda.txt
    fi
    pip_install torch --constraint "constraints/$constraints" ${TORCH_INDEX_URL:+--index-url "$TORCH_INDEX_URL"} torch $with
}

install_gradian() {
    say "Installing Gradian and what it needs..."
    set -- ".${extras:+[$extras]}"
    if [ "$local" = yes ]; then
        suffix=$("$build/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')
        native=$source/gradian/_native$suffix
        [ ! -e "$native" ] || native=
        # What setuptools writes on the way stays out of the checkout.
        printf '[egg_info]\negg_base = %s\n' "$build/tmp" >"$build/tmp/setup.cfg"
        export DIST_EXTRA_CONFIG="$build/tmp/setup.cfg"
        set -- --editable "$1"
    fi
    pip_install Gradian --constraint "constraints/$constraints" "$@"
    if [ -n "$native" ] && [ -e "$native" ]; then record "built $(cksum <"$native") $native"; fi
}

# The script that is linked. It names the interpreter, because not every path can stand behind #!, and keeps the modules
# of other environments out.
write_start_script() {
    cat >"$build/gradian" <<END
#!/bin/sh
# Made by Gradian's install.sh.
unset PYTHONHOME PYTHONPATH
exec $(quoted "$build/venv/bin/python") $(quoted "$build/venv/bin/gradian") "\$@"
END
    chmod +x "$build/gradian"
    printf '%s/\n' "$build" >"$build/pattern"
    printf '%s\n' "repository: $repo" "ref: $ref" "commit: $commit" "constraints: $constraints" "extras: $extras" \
        >"$build/source"
}

# From here on the new installation is the one.
commit_to_it() {
    record "link $bin/.gradian.$$"
    record "link $bin/gradian"
    trap '' HUP INT TERM
    ln -s "$build/gradian" "$bin/.gradian.$$"
    mv -f "$bin/.gradian.$$" "$bin/gradian"
    finished=$build
    build=
    heed_signals
    rm -f "$finished/building"
}

remove_half_made() {
    for other in "$root/envs"/*; do
        # Linked already: killed right after it was finished.
        if [ -f "$other/building" ] && ! is_being_built "$other" && ! is_linked "$other"; then rm -rf "$other"; fi
    done
}

remove_replaced() {
    recorded link | while IFS= read -r link; do
        [ "$link" = "$bin/gradian" ] || ! is_ours "$link" || rm -f "$link"
    done
    for other in "$root/envs"/*; do
        if [ "$other" = "$finished" ] || is_being_built "$other" || is_linked "$other"; then continue; fi
        users=$(users_of "$other" | tr '\n' ' ')
        if [ -z "$users" ]; then
            rm -rf "$other"
        else
            say "An earlier installation still runs, as process ${users% }: the next run of this installer removes $other."
        fi
    done
}

uninstall() {
    remove_unbegun
    if [ ! -f "$made" ]; then
        say "Nothing to remove: this installer has installed nothing in $home (GRADIAN_HOME names another folder)."
        return
    fi
    for other in "$root/envs"/*; do
        [ -d "$other" ] || continue
        ! is_being_built "$other" || fail "an installation is running, as process $(cat "$other/building")" \
            "Let it finish, or stop it, and uninstall then."
        users=$(users_of "$other" | tr '\n' ' ')
        [ -z "$users" ] || fail "Gradian is running, as process ${users% }" "Let it finish, or stop it, and uninstall then."
    done
    remove_everything
    say "Gradian is removed."
    for kept in "$home" "${XDG_CACHE_HOME:-$HOME/.cache}/gradian"; do
        [ ! -e "$kept" ] || say "Kept, because it holds your data and not the installation: $kept"
    done
}

# ---- all together ----------------------------------------------------------------------------------------------------

install() {
    repo=${GRADIAN_REPO:-https://github.com/gradian-ai/gradian}
    ref=${GRADIAN_REF:-main}
    extras=${GRADIAN_EXTRAS:-}
    case $repo in -*) fail "not a repository: GRADIAN_REPO=$repo" ;; esac
    case $ref in -* | *[!A-Za-z0-9._/+@-]*) fail "not the name of a tag, branch or commit: GRADIAN_REF=$ref" ;; esac
    case $extras in *[!a-z,]*) fail "not names of extras: GRADIAN_EXTRAS=$extras" "Like: GRADIAN_EXTRAS=train,cluster" ;; esac
    if has_gpu && ! is_on "${GRADIAN_CPU:-}"; then
        constraints=cuda.txt hardware="an NVIDIA GPU"
    else
        constraints=cpu.txt hardware="the CPU"
    fi
    if is_on "${GRADIAN_UNSLOTH:-}"; then
        ! is_on "${GRADIAN_CPU:-}" || fail "GRADIAN_UNSLOTH=1 and GRADIAN_CPU=1 exclude each other" "unsloth needs CUDA."
        has_gpu || say "No NVIDIA GPU is visible here. unsloth is installed for one, and will not run without."
        constraints=unsloth.txt hardware="an NVIDIA GPU" extras=${extras:+$extras,}unsloth,train,cluster
    fi
    if [ "$local" = yes ]; then
        [ -z "${GRADIAN_REF:-}" ] || fail "--local and GRADIAN_REF exclude each other" "Check out $ref first, then install with --local."
        source=$(CDPATH='' cd -P "$(dirname "$0")" && pwd)
        [ -f "$source/pyproject.toml" ] && [ -d "$source/csrc" ] || fail "--local installs the checkout that install.sh lies in" \
            "There is none in $source" "Clone the repository, and run install.sh --local there."
        case $source in *"$newline"*) fail "a path with a line break cannot be used: $source" ;; esac
        repo=$source ref=local commit=$(git -C "$source" rev-parse HEAD 2>/dev/null) || commit="an unnamed commit"
    fi
    if [ -e "$bin/gradian" ] || [ -L "$bin/gradian" ]; then
        is_ours "$bin/gradian" || fail "$bin/gradian exists, but this installer did not make it" \
            "Remove it, or choose another folder for the command: GRADIAN_BIN=..."
    fi

    set -- python3 python3.12 python3.11 python3.10 python
    [ -z "${GRADIAN_PYTHON:-}" ] || set -- "$GRADIAN_PYTHON"
    choose_python "$@"

    now=$(date -u +%Y%m%dT%H%M%SZ)
    make_root
    build=$root/envs/$now-$$
    trap clean_up EXIT
    remove_half_made
    mkdir -p "$build/tmp"
    printf '%s %s\n' "$$" "$(uname -n)" >"$build/building"
    make_folder "$bin" && [ -w "$bin" ] || fail "$bin cannot be written" "Choose another folder for the command: GRADIAN_BIN=..."

    # Nothing of other environments; and everything temporary lies on the disk that has to be large enough anyway.
    unset PYTHONHOME PYTHONPATH PIP_TARGET PIP_PREFIX PIP_ROOT
    export PIP_USER=0 PIP_NO_INPUT=1 PIP_DISABLE_PIP_VERSION_CHECK=1 TMPDIR="$build/tmp"
    [ -n "${PIP_CACHE_DIR:-}" ] || export PIP_NO_CACHE_DIR=1

    say "Installing Gradian into $home, with $python."
    [ "$local" = yes ] || fetch_source
    cd "$source"
    for extra in $(printf '%s\n' "$extras" | tr , ' '); do
        grep -q "^$extra = \[" pyproject.toml || fail "Gradian has no extra $extra" "GRADIAN_EXTRAS=$extras"
    done
    make_environment
    install_torch
    install_gradian
    write_start_script
    run env PYTHONDONTWRITEBYTECODE=1 "$build/gradian" doctor >"$build/tmp/doctor" ||
        fail "the new installation does not run" "\`gradian doctor\` says why, above."
    commit_to_it

    cat "$finished/tmp/doctor"
    say
    if ! grep -q 'compiled extension: runs on' "$finished/tmp/doctor"; then
        say "The compiled scorer was not built, so scoring runs on torch alone: right, and several times slower." \
            "It needs a C++17 compiler and the headers of Python; install them and run this installer again."
    fi
    if grep -q 'no device is visible' "$finished/tmp/doctor"; then
        say "This build of torch is for CUDA, but finds no device. With a GPU here, its driver is too old for the build;" \
            "without one, a CPU build is smaller. TORCH_INDEX_URL names the index of another build."
    fi
    cd /
    rm -rf "$finished/tmp" "$finished/tree" "$finished/archive"
    remove_replaced
    say "Gradian is installed in $home, from $repo, $ref ($commit)."
    put_on_path
    found=$(command -v gradian || :)
    case $found in "" | "$bin/gradian") ;; *) say "But another one comes first on PATH: $found" ;; esac
}

# Ends by exit and not by return: what follows in the file may be another version by then.
main() {
    local=no
    case ${1:-} in
    '') ;;
    --local) local=yes ;;
    -h | --help) usage && return ;;
    *) fail "unknown argument $1" "Known: --local, --help" ;;
    esac
    case $(uname -s) in Linux | Darwin) ;; *) fail "$(uname -s) is not supported" "On Windows, use WSL2." ;; esac

    [ -d "${HOME:-}" ] || fail "HOME is no folder: ${HOME:-not set}" "Set it to the folder that is to hold .gradian."
    home=${GRADIAN_HOME:-${HOME%/}/.gradian}
    bin=${GRADIAN_BIN:-${HOME%/}/.local/bin}
    home=${home%/} bin=${bin%/}
    root=$home/install
    made=$root/made
    newline='
'
    for path in "$home" "$bin"; do
        case $path in
        *"$newline"*) fail "a path with a line break cannot be used: $path" ;;
        *:* | *\$*) fail "a path with a colon or a dollar sign cannot be used: $path" \
            "A folder on PATH cannot have the one, and setuptools builds nothing in a path with the other." \
            "Choose other folders: GRADIAN_HOME=... GRADIAN_BIN=..." ;;
        /*) ;;
        *) fail "not an absolute path: $path" ;;
        esac
    done

    build='' child='' native=''
    heed_signals
    if is_on "${GRADIAN_UNINSTALL:-}"; then uninstall; else install; fi
    exit 0
}

{ main "$@" </dev/null; }
