/* pdflash - dispatch a subcommand and turn its status into the exit code. Nothing else exits. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "build_id.h"
#include "cmd/options.h"

static void help(FILE *f)
{
    fprintf(f, "pdflash - Kimi-K3 batch inference: pipeline prefill, RMA state transfer, DFlash decode\n\n"
               "usage: pdflash COMMAND [options]\n\n");
    for (const struct command_row *c = command_table; c->name; c++)
        if (c->run) fprintf(f, "  %-9s %s\n", c->name, c->what);
    fprintf(f, "\n`pdflash help COMMAND` lists a command's options; `pdflash help --man` is the manual page\n"
               "(| man -l -), `pdflash help --completion` completes for bash. Exit codes: 0 complete, 1 usage, 2 refused,\n"
               "3 fault, 4 watchdog or incomplete, 75 interrupted (resumable).\n");
}

static const struct command_row *find(const char *name)
{
    const struct command_row *c = command_table;
    while (c->name && !(c->run && strcmp(c->name, name) == 0)) c++;
    return c->name ? c : NULL;
}

/* `help COMMAND`, `help bench NAME`: what --help behind it prints */
static enum status help_of(int argc, char **argv)
{
    char *word[] = {argc == 2 ? argv[1] : (char[]){"--help"}, (char[]){"--help"}};
    const struct command_row *c = find(argv[0]);
    if (!c || argc > 2)
        return ERR(ST_E_USAGE, "help: '%s': name a command, or --man or --completion", argv[c ? 2 : 0]);
    return c->run(argc, word);
}

/* What a command printed is good only if it arrived: the one place where standard output is checked. */
static int leave(enum status st)
{
    errno = 0;
    if ((fflush(stdout) != 0 || ferror(stdout)) && st == ST_OK)
        st = ERR(ST_E_IO, "standard output: cannot write%s%s", errno ? ": " : "", errno ? strerror(errno) : "");
    return err_exit_code(st);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        help(stderr);
        return 1;
    }
    if (options_is_help(argv[1]) || strcmp(argv[1], "help") == 0) {
        if (argc == 2)
            help(stdout);
        else if (argc == 3 && strcmp(argv[2], "--man") == 0)
            manual_page(stdout);
        else if (argc == 3 && strcmp(argv[2], "--completion") == 0)
            manual_completion(stdout);
        else
            return leave(help_of(argc - 2, argv + 2));
        return leave(ST_OK);
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("pdflash %s\n", PDFLASH_GIT);
        return leave(ST_OK);
    }
    const struct command_row *c = find(argv[1]);
    if (c) return leave(c->run(argc - 2, argv + 2));
    fprintf(stderr, "pdflash: '%s' is not a command\n\n", argv[1]);
    help(stderr);
    return 1;
}
