/* stub until written */
#include "cmd/options.h"
void manual_page(FILE *f){(void)f;}
void manual_completion(FILE *f){(void)f;}
