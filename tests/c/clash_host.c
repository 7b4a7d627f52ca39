/* clash_host FAKE PLUGIN: opens the fake with RTLD_GLOBAL, then the plugin, and asks the plugin whom it reaches. */
#include <dlfcn.h>
#include <stdio.h>

typedef int (*function)(void);

int main(int argc, char **argv) {
  void *fake, *plugin;
  function direct, table;
  if (argc != 3) return 10;
  fake = dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL);
  plugin = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL);
  if (fake == NULL || plugin == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 11;
  }
  *(void **)&direct = dlsym(plugin, "plugin_direct");
  *(void **)&table = dlsym(plugin, "plugin_table");
  printf("direct %d table %d\n", direct(), table());
  return 0;
}
