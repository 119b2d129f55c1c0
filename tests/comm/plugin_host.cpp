// test_plugin_host PLUGIN...: loads each plug-in in turn, calls its function and unloads it. All of this twice.
#include <cstdio>

#include <dlfcn.h>

int main(int argc, char** argv) {
  for (int round = 0; round < 2; ++round) {
    for (int i = 1; i < argc; ++i) {
      void* const plugin = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL);
      if (plugin == nullptr) {
        std::fprintf(stderr, "%s\n", dlerror());
        return 2;
      }
      const auto run = reinterpret_cast<int (*)(const char*)>(dlsym(plugin, "plugin_run"));
      if (run == nullptr || run(argv[i]) != 0) return 1;
      dlclose(plugin);
    }
  }
  return 0;
}
