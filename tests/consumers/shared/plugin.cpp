#include <muster/comm/context.hpp>

#define PLUGIN_EXPORTS extern "C" __attribute__((visibility("default")))

PLUGIN_EXPORTS void plugin_throws() { throw muster::peer_failure(std::vector<int>{3}, "rank 3 is gone"); }

PLUGIN_EXPORTS bool plugin_catches(void (*call)()) {
  try {
    call();
  } catch (const muster::configuration_error&) {
    return true;
  } catch (...) {
  }
  return false;
}

PLUGIN_EXPORTS void plugin_registers() {
  muster::register_transport(
      "of_plugin", [](const muster::settings&, const muster::launch_env&) -> std::unique_ptr<muster::transport> {
        throw muster::data_error({.file = "plugin"}, "of the plug-in");
      });
}
