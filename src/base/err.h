/* err - status codes, their texts and exit codes, and the macros that return them.
 *
 * One list (ERR_LIST) is the only place a code is defined. The function that first decides that
 * something is wrong logs it through ERR(), with cause and remedy, and returns the code; callers pass
 * it on with TRY(). Nothing but main exits. Local. */
#ifndef PDFLASH_BASE_ERR_H
#define PDFLASH_BASE_ERR_H

/*  X(code, exit code of the program, text) */
#define ERR_LIST(X)                                                    \
    X(ST_OK, 0, "ok")                                                  \
    X(ST_E_USAGE, 1, "wrong command line")                             \
    X(ST_E_CONFIG, 2, "configuration refused")                         \
    X(ST_E_FILE, 2, "file cannot be used")                             \
    X(ST_E_FORMAT, 2, "file content refused")                          \
    X(ST_E_HANDSHAKE, 2, "layouts of the two groups do not match")     \
    X(ST_E_LAUNCH, 1, "started in the wrong way")                      \
    X(ST_E_RANGE, 3, "argument out of range")                          \
    X(ST_E_NOMEM, 3, "out of memory")                                  \
    X(ST_E_IO, 3, "input or output failed")                            \
    X(ST_E_MPI, 3, "MPI call failed")                                  \
    X(ST_E_HDF5, 3, "HDF5 call failed")                                \
    X(ST_E_DEVICE, 3, "device call failed")                            \
    X(ST_E_FAULT, 3, "run-time fault")                                 \
    X(ST_E_INTERNAL, 3, "internal error")                              \
    X(ST_E_PROTOCOL, 3, "order log or words broken")                   \
    X(ST_E_WATCHDOG, 4, "no progress")                                 \
    X(ST_E_INCOMPLETE, 4, "run incomplete")                            \
    X(ST_E_INTERRUPTED, 75, "interrupted, resumable")

#define ERR_ENUM_(code, exit_, text) code,
enum status { ERR_LIST(ERR_ENUM_) ST_N };
#undef ERR_ENUM_

/* err_text - the text of a status; never NULL. */
const char *err_text(enum status st);
/* err_name - the identifier of a status, e.g. "ST_E_FILE"; never NULL. */
const char *err_name(enum status st);
/* err_exit_code - the documented exit code of the program for a status. */
int err_exit_code(enum status st);

/* err_report - log an error (level error) with source position; returns st. Use through ERR(). */
enum status err_report(enum status st, const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* err_last - the last message reported by this process, "" if none (for tests and result files). */
const char *err_last(void);

/* return ERR(ST_E_FILE, "%s: cannot open: %s", path, strerror(errno)); */
#define ERR(st, ...) err_report((st), __FILE__, __LINE__, __VA_ARGS__)
#define TRY(expr)                              \
    do {                                       \
        enum status try_st_ = (expr);          \
        if (try_st_ != ST_OK) return try_st_;  \
    } while (0)
/* TRY_GO - the same for functions with cleanup labels: st = expr, jump on failure. */
#define TRY_GO(st, expr, label)              \
    do {                                     \
        (st) = (expr);                       \
        if ((st) != ST_OK) goto label;       \
    } while (0)

#endif
