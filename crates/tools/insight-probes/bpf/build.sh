#!/bin/sh
# Compiles probes.bpf.c with clang (14 or later; CLANG and LLVM_STRIP name other programs), and writes down of which source the object is.
set -eu
cd "$(dirname "$0")"
"${CLANG:-clang}" -g -O2 -Wall -target bpf -mcpu=v3 -fdebug-prefix-map="$PWD"=. -c probes.bpf.c -o probes.bpf.o
"${LLVM_STRIP:-llvm-strip}" -g probes.bpf.o
sha256sum probes.bpf.c | cut -d' ' -f1 > probes.bpf.sha256
