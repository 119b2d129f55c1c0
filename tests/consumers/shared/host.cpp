// host PLUGIN: a program and its plug-in use the same shared libraries of muster. The loader keeps the names of the two
// apart (RTLD_LOCAL).
#include <cstdio>

#include <dlfcn.h>

#include <muster/comm/context.hpp>

namespace {

int failures = 0;

void expect(bool is_right, const char* expectation) {
  if (is_right) return;
  std::fprintf(stderr, "wrong: %s\n", expectation);
  ++failures;
}

void unknown_transport() { (void)muster::connect_transport("nonsense", muster::settings(), muster::launch_env()); }

}  // namespace

int main(int argc, char** argv) {
  void* const plugin = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : nullptr;
  if (plugin == nullptr) {
    std::fprintf(stderr, "no plug-in: %s\n", argc == 2 ? dlerror() : "give its path");
    return 2;
  }
  const auto throws = reinterpret_cast<void (*)()>(dlsym(plugin, "plugin_throws"));
  const auto catches = reinterpret_cast<bool (*)(void (*)())>(dlsym(plugin, "plugin_catches"));
  const auto registers = reinterpret_cast<void (*)()>(dlsym(plugin, "plugin_registers"));

  bool caught = false;
  try {
    throws();
  } catch (const muster::peer_failure& error) {
    caught = error.ranks() == std::vector<int>{3};
  } catch (...) {
  }
  expect(caught, "the program catches an error of its plug-in by its type");
  expect(catches(unknown_transport), "the plug-in catches an error of the library by its type");

  registers();
  caught = false;
  try {
    (void)muster::connect_transport("of_plugin", muster::settings(), muster::launch_env());
  } catch (const muster::data_error&) {
    caught = true;
  } catch (const muster::error& error) {
    std::fprintf(stderr, "%s\n", error.what());
  }
  expect(caught, "the program finds the transport that its plug-in has registered");
  if (failures == 0) std::puts("a program and its plug-in share muster");
  return failures;
}
