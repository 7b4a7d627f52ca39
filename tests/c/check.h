/* What the test programs share: a condition that must hold, a call that must succeed, a call that must fail. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                        \
  do {                                                                          \
    if (!(condition)) {                                                         \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);   \
      exit(1);                                                                  \
    }                                                                           \
  } while (0)

#define OK(call)                                                                                                         \
  do {                                                                                                                   \
    nvte_status_t status_ = (call);                                                                                      \
    if (status_ != NVTE_OK) {                                                                                            \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, nvte_status_name(status_), nvte_last_error());              \
      exit(1);                                                                                                           \
    }                                                                                                                    \
  } while (0)

/* The call answers `wanted`, and its message holds `text`. */
#define FAILS(wanted, text, call)                                                                                        \
  do {                                                                                                                   \
    nvte_status_t status_ = (call);                                                                                      \
    if (status_ != (wanted) || strstr(nvte_last_error(), text) == NULL) {                                                \
      fprintf(stderr, "%s:%d: status %d (%s), message \"%s\"\n", __FILE__, __LINE__, (int)status_, nvte_status_name(status_), \
              nvte_last_error());                                                                                        \
      exit(1);                                                                                                           \
    }                                                                                                                    \
  } while (0)

#endif
