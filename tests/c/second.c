/* A second translation unit with the header as its only include: the header stands alone and defines nothing twice. */
#include "nvte.h"
#include "nvte.h"

int second_unit_knows_the_abi(void);

int second_unit_knows_the_abi(void) { return nvte_abi_version() == NVTE_ABI_VERSION && nvte_api(NVTE_ABI_VERSION) != NULL; }
