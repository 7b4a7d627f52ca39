/* An NVRTC that compiles anything to four bytes. */
#include <stddef.h>
#include <string.h>

int nvrtcVersion(int *major, int *minor) { return *major = 13, *minor = 0, 0; }
int nvrtcCreateProgram(void **program, const char *text, const char *name, int n, const char **headers, const char **names) {
  (void)text, (void)name, (void)n, (void)headers, (void)names;
  *program = program;
  return 0;
}
int nvrtcCompileProgram(void *program, int n, const char **options) { return (void)program, (void)n, (void)options, 0; }
int nvrtcGetProgramLogSize(void *program, size_t *size) { return (void)program, *size = 0, 0; }
int nvrtcGetProgramLog(void *program, char *text) { return (void)program, (void)text, 0; }
int nvrtcGetCUBINSize(void *program, size_t *size) { return (void)program, *size = 4, 0; }
int nvrtcGetCUBIN(void *program, char *bytes) { return (void)program, memcpy(bytes, "fake", 4), 0; }
int nvrtcDestroyProgram(void **program) { return *program = NULL, 0; }
int nvrtcGetNumSupportedArchs(int *n) { return *n = 1, 0; }
int nvrtcGetSupportedArchs(int *list) { return *list = 90, 0; }
