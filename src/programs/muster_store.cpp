// muster-store: serves the store of a job from a separate process. One store can serve several jobs if at most one job
// is elastic.
#include <signal.h>

#include <chrono>
#include <cstdio>
#include <string>

#include <muster/comm/bootstrap/tcp_store.hpp>
#include <muster/comm/comm_settings.hpp>
#include <muster/core/env.hpp>
#include <muster/core/error.hpp>
#include <muster/core/number.hpp>

#include "command_line.hpp"
#include "run_program.hpp"

namespace {

constexpr const char* footer =
    "Ranks connect with --rendezvous tcp://HOST:PORT. MUSTER_TOKEN, if set, must be equal at the store and the ranks.\n"
    "muster-store prints the address at which it listens, and exits with 0 after SIGTERM, SIGINT\n"
    "or SIGHUP (unless nohup ignores SIGHUP).";

struct plan {
  std::string listen;  // Address and port to listen at.
  std::string data;    // Folder of the table; empty: in memory.
  std::string file;    // Path of the store file to write, or empty.
  double unused = 0;   // Seconds without a client after which the program ends; 0: never.
};

int serve(plan options, const std::string& token, const sigset_t& ends) {
  if (options.listen.starts_with(':') && token.empty()) {
    options.listen.insert(0, "127.0.0.1");
    std::fputs("muster-store: listens for this host alone (no token is set); set MUSTER_TOKEN, or name an address\n",
               stderr);
  }
  muster::store_server server(options.listen, token, options.data);
  if (!options.file.empty()) server.announce(options.file);
  std::printf("muster-store listens at %s\n", server.address().c_str());
  muster::detail::flush_standard_output();
  auto used = std::chrono::steady_clock::now();
  for (;;) {
    const timespec turn{0, 200'000'000};
    if (::sigtimedwait(&ends, nullptr, &turn) > 0) return 0;
    if (server.has_ended()) return 1;  // The log has the reason.
    const auto now = std::chrono::steady_clock::now();
    if (server.connection_counts().present > 0) used = now;
    if (options.unused > 0 && now - used > std::chrono::duration<double>(options.unused)) return 0;
  }
}

}  // namespace

int main(int argc, char** argv) {
  return run_program("muster-store: error", [&] {
    sigset_t ends;  // Blocked before any thread starts.
    ::sigemptyset(&ends);
    struct sigaction hangup {};
    (void)::sigaction(SIGHUP, nullptr, &hangup);
    if (hangup.sa_handler != SIG_IGN) ::sigaddset(&ends, SIGHUP);  // nohup ignores SIGHUP.
    for (const int signal : {SIGTERM, SIGINT}) ::sigaddset(&ends, signal);
    ::sigprocmask(SIG_BLOCK, &ends, nullptr);
    const muster::settings configuration(argc, argv);
    plan read;
    CLI::App app(
        "Serves the store of a job. Several jobs with their own names may share it if at most one job is elastic.",
        "muster-store");
    app.footer(footer);
    app.add_option("--listen", read.listen,
                   "address and port: 10.0.0.1:29500, 127.0.0.1:0 (a free port), :29500 (all interfaces with a token, "
                   "without one the loopback)")
        ->type_name("ADDRESS")
        ->required();
    app.add_option("--data", read.data, "keep the table in this folder, and continue with it after a restart")
        ->type_name("FOLDER");
    app.add_option("--file", read.file,
                   "write its address and token to this file, for this user alone; remove it at the end")
        ->type_name("FILE");
    muster::add_number(app, "--unused", read.unused, {0, 1e6},
                       "seconds without a client after which the program ends; 0: never");
    if (const auto asked = configuration.requested(); asked != muster::settings::request::none) {
      const bool of_version = asked == muster::settings::request::version;
      std::fputs((of_version ? muster::output_for(asked, {}) : app.help()).c_str(), stdout);
      return 0;
    }
    if (is_answered(app, argc, argv)) return 0;
    const auto& token = configuration.value(muster::setting::token);
    return serve(read, token == "auto" ? "" : token, ends);
  });
}
