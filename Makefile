# pdflash - build, test and run. `make help` lists the targets.
# Objects live in build/$(VARIANT)/, so builds of different kinds never share one.

CUDA      ?= 0
VARIANT   ?= $(if $(filter 1,$(CUDA)),release-cuda,release)
CC        ?= cc
MPICC     ?= mpicc
BOOTSTRAP ?= 1
PREFIX    ?= /usr/local
B         := build/$(VARIANT)

# ---- flags ---------------------------------------------------------------
PKGCFG    := pkg-config
PKGS       = $(shell $(PKGCFG) --exists hdf5 2>/dev/null && echo hdf5 || echo hdf5-serial) jansson libpcre2-8 libxxhash zlib
WARN      := -Wall -Wextra -Werror -Wpointer-arith -Wshadow -Wvla -Wstrict-prototypes -Wmissing-prototypes
OPT       ?= -O2 -g
SAN       ?=
# -ffp-contract=off: a sum is what the source says, on every compiler (kernels that fuse say so with intrinsics)
CFLAGS_   = -std=c11 -D_GNU_SOURCE $(OPT) $(WARN) -ffp-contract=off -fno-math-errno $(SAN) -Isrc -Ibuild \
            $(shell $(PKGCFG) --cflags $(PKGS) 2>/dev/null) $(CFLAGS)
LDLIBS_   = $(shell $(PKGCFG) --libs $(PKGS) 2>/dev/null) -lm -ldl $(LDLIBS)
CHECK_CF  = $(shell $(PKGCFG) --cflags check 2>/dev/null)
CHECK_LD  = $(shell $(PKGCFG) --libs check 2>/dev/null)

# mpicc wraps whatever compiler CC names
export OMPI_CC := $(CC)

# ---- sources -------------------------------------------------------------
SRCS      := $(sort $(wildcard src/*/*.c src/ops/cpu/*.c))
MAIN      := src/main.c
ifeq ($(CUDA),1)
include cuda/cuda.mk
else
CUDA_OBJS :=
endif
OBJS      := $(SRCS:%.c=$(B)/%.o) $(CUDA_OBJS)
LIB       := $(B)/libpdflash.a
BIN       := $(B)/pdflash
TSRCS     := $(sort $(wildcard tests/t_*.c))
TSUITE    := $(B)/tests/suite.o
TESTS     := $(TSRCS:tests/%.c=$(B)/tests/%)
MTSRCS    := $(sort $(wildcard tests/mpi_*.c))
MTESTS    := $(MTSRCS:tests/%.c=$(B)/tests/%)
# x_*: programs that the end-to-end tests call; bench_*: measurements, never part of a test run
XTESTS    := $(patsubst tests/%.c,$(B)/tests/%,$(sort $(wildcard tests/x_*.c)))
# a stand-in for NCCL, loaded by tests
DOUBLE    := $(B)/tests/libnccl-double.so
# programs around the product
MKTINY    := $(B)/mktiny
BENCHES   := $(patsubst tests/%.c,$(B)/tests/%,$(sort $(wildcard tests/bench_*.c)))

.PHONY: all help tools bench run test test-unit test-mpi test-e2e asan ubsan valgrind lint format install clean bootstrap man
.DEFAULT_GOAL := all

## all: build pdflash
all: bootstrap
	@$(MAKE) --no-print-directory BOOTSTRAP=0 $(BIN)

## help: list targets
help:
	@sed -n 's/^## //p' Makefile

## bootstrap: install missing packages (BOOTSTRAP=0 skips)
bootstrap:
	@if [ "$(BOOTSTRAP)" != 0 ]; then tools/bootstrap; fi

# a build that a person did not ask -j for uses all cores
JOBS = $(if $(findstring -j,$(MAKEFLAGS)),,-j$(shell nproc 2>/dev/null || echo 1))

## run: the main job on the CPU: 64 GSM8K train questions, prefill pp=8, decode tp=8, 16 ranks (ARGS="more run options")
run: bootstrap
	@$(MAKE) $(JOBS) --no-print-directory BOOTSTRAP=0 $(BIN)
	@PDFLASH=$(BIN) tools/run-gsm8k

## test: build, then every test (unit, MPI, end to end)
test: bootstrap
	@$(MAKE) $(JOBS) --no-print-directory BOOTSTRAP=0 $(BIN) build-tests
	@B=$(B) tests/run.sh all

## test-unit: serial tests only
test-unit: $(TESTS) $(MKTINY)
	@B=$(B) tests/run.sh unit

## test-mpi: tests of modules that communicate
test-mpi: $(MTESTS) $(DOUBLE)
	@B=$(B) tests/run.sh mpi

## test-e2e: the program as a user runs it
test-e2e: $(BIN) $(XTESTS) $(MKTINY) $(DOUBLE)
	@B=$(B) tests/run.sh e2e

.PHONY: build-tests
build-tests: $(TESTS) $(MTESTS) $(XTESTS) $(MKTINY) $(DOUBLE)

## tools: build the programs around the product (mktiny: random checkpoints)
tools: $(MKTINY)

## bench: build the measuring programs (build/release/tests/bench_*)
bench: $(BENCHES)

# (instrumentation hides string lengths from gcc, hence the warning that is off)
## asan: whole suite under AddressSanitizer and UndefinedBehaviorSanitizer
asan ubsan:
	@$(MAKE) --no-print-directory BOOTSTRAP=0 VARIANT=asan OPT="-O2 -g -fno-omit-frame-pointer -Wno-format-truncation" \
	    SAN="-fsanitize=address,undefined -fno-sanitize-recover=undefined" build/asan/pdflash build-tests
	@B=build/asan SANITIZE=1 tests/run.sh all

## valgrind: serial tests under memcheck, scalar kernels
valgrind: $(TESTS) $(MKTINY)
	@B=$(B) tests/run.sh valgrind

## lint: include ladder, file sizes, man page
lint:
	@tools/lint

## format: clang-format the tree
format:
	clang-format -i $(SRCS) $(MAIN) $(wildcard src/*/*.h src/ops/cpu/*.h tests/*.c tests/*.h)

## man: make the manual page build/release/pdflash.1 from the option table
man: $(B)/pdflash.1
$(B)/pdflash.1: $(BIN)
	$(call say,MAN $@)
	$(Q)$(BIN) help --man >$@.new && mv $@.new $@
$(B)/pdflash.bash: $(BIN)
	$(call say,COMPLETION $@)
	$(Q)$(BIN) help --completion >$@.new && mv $@.new $@

## install: copy the program, its man page and bash completion under DESTDIR/PREFIX
install: $(BIN) $(B)/pdflash.1 $(B)/pdflash.bash
	install -D -m 755 $(BIN) $(DESTDIR)$(PREFIX)/bin/pdflash
	install -D -m 644 $(B)/pdflash.1 $(DESTDIR)$(PREFIX)/share/man/man1/pdflash.1
	install -D -m 644 $(B)/pdflash.bash $(DESTDIR)$(PREFIX)/share/bash-completion/completions/pdflash

## clean: remove build output
clean:
	rm -rf build

# ---- rules ---------------------------------------------------------------
# V=1 prints the commands
ifeq ($(V),1)
Q :=
say :=
else
Q := @
say = @echo "  $(1)";
endif

# The build id names commit and tree state; ranks with different ids refuse to run together.
build/build_id.h: FORCE
	@mkdir -p build
	@id=$$(git describe --always --dirty --abbrev=12 2>/dev/null || echo nogit); \
	 printf '#define PDFLASH_GIT "%s"\n' "$$id" > $@.new; \
	 cmp -s $@.new $@ && rm -f $@.new || mv $@.new $@
FORCE:

$(B)/src/pd/%.o: src/pd/%.c build/build_id.h Makefile
	@mkdir -p $(@D)
	$(call say,CC $<)
	$(Q)$(MPICC) $(CFLAGS_) -MMD -MP -c $< -o $@
$(B)/src/cmd/%.o: src/cmd/%.c build/build_id.h Makefile
	@mkdir -p $(@D)
	$(call say,CC $<)
	$(Q)$(MPICC) $(CFLAGS_) -MMD -MP -c $< -o $@
$(B)/src/main.o: src/main.c build/build_id.h Makefile
	@mkdir -p $(@D)
	$(call say,CC $<)
	$(Q)$(MPICC) $(CFLAGS_) -MMD -MP -c $< -o $@
$(B)/src/%.o: src/%.c Makefile | build/build_id.h
	@mkdir -p $(@D)
	$(call say,CC $<)
	$(Q)$(CC) $(CFLAGS_) -MMD -MP -c $< -o $@
$(LIB): $(OBJS)
	@rm -f $@
	$(call say,AR $@)
	$(Q)ar qcs $@ $^
$(BIN): $(B)/src/main.o $(LIB)
	$(call say,LD $@)
	$(Q)$(MPICC) $(SAN) -o $@ $< $(LIB) $(LDLIBS_)
$(B)/mktiny: $(B)/tools/mktiny.o $(LIB)
	$(call say,LD $@)
	$(Q)$(CC) $(SAN) -o $@ $< $(LIB) $(LDLIBS_)
$(B)/tools/%.o: tools/%.c Makefile
	@mkdir -p $(@D)
	$(call say,CC $<)
	$(Q)$(CC) $(CFLAGS_) -MMD -MP -c $< -o $@
$(B)/tests/%.o: tests/%.c Makefile
	@mkdir -p $(@D)
	$(call say,CC $<)
	$(Q)$(MPICC) $(CFLAGS_) $(CHECK_CF) -Itests -MMD -MP -c $< -o $@
# helper programs have their own main and no suite
$(B)/tests/x_%: $(B)/tests/x_%.o $(LIB)
	$(call say,LD $@)
	$(Q)$(MPICC) $(SAN) -o $@ $< $(LIB) $(LDLIBS_)
# benches may borrow the tests' set-up code, so they link Check and the suite like tests do, as archives
$(B)/tests/libsuite.a: $(TSUITE)
	$(Q)rm -f $@ && ar qcs $@ $^
$(B)/tests/bench_%: $(B)/tests/bench_%.o $(B)/tests/libsuite.a $(LIB)
	$(call say,LD $@)
	$(Q)$(MPICC) $(SAN) -o $@ $< $(B)/tests/libsuite.a $(LIB) $(CHECK_LD) $(LDLIBS_)
$(B)/tests/%: $(B)/tests/%.o $(TSUITE) $(LIB)
	$(call say,LD $@)
	$(Q)$(MPICC) $(SAN) -o $@ $< $(TSUITE) $(LIB) $(CHECK_LD) $(LDLIBS_)
.PRECIOUS: $(B)/tests/%.o
$(DOUBLE): tests/nccl_double.c Makefile
	@mkdir -p $(@D)
	$(call say,LD $@)
	$(Q)$(CC) $(CFLAGS_) -fPIC -shared -fvisibility=default -o $@ $< -ldl -lrt

-include $(OBJS:.o=.d) $(XTESTS:=.d) $(B)/tools/mktiny.d $(B)/src/main.d $(TSRCS:tests/%.c=$(B)/tests/%.d) $(MTSRCS:tests/%.c=$(B)/tests/%.d) $(B)/tests/suite.d
