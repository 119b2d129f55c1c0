// Serves models that the examples have saved (docs/serving.md).
//
//   build/release/examples/serve --models models --listen 127.0.0.1:8000
//   build/release/examples/serve --gateway 127.0.0.1:8001,127.0.0.1:8002 --split rows --listen 127.0.0.1:8000
#include <cstdio>
#include <string>
#include <string_view>

#include <muster/muster.hpp>
#include <muster/serve/server.hpp>

#include "../command_line.hpp"
#include "gateway.hpp"
#include "models.hpp"

namespace {

/// "0us", "2ms" or "1s".
muster::seconds read_time(std::string_view name, std::string_view text) {
  for (const auto& unit : {std::pair("us", 1e-6), std::pair("ms", 1e-3), std::pair("s", 1.0)}) {
    if (!text.ends_with(unit.first)) continue;
    const auto number = muster::parse_number<double>(text.substr(0, text.size() - std::string_view(unit.first).size()));
    if (number && *number >= 0) return muster::seconds(*number * unit.second);
  }
  examples::refuse(std::string(name) + " cannot be '" + std::string(text) + "' (it is no time)",
                   "write such as 0us, 2ms or 1s");
}

}  // namespace

int main(int argc, char** argv) {
  std::string models, combine, split = "rows", delay = "0us", replica_timeout = "10s";
  served::gateway_options gateway;
  muster::serve::server_options options;
  muster::serve::batch_options batches;
  int model_threads = 1;
  std::uint64_t max_batch = batches.max_batch, queue = batches.queue, max_body = options.max_body;
  CLI::App app{"Serves models that programs of the examples have saved, by the Open Inference Protocol.", "serve"};
  app.set_help_flag();  // run_main has it
  app.add_option("--models", models, "FOLDER/<model>/<version>/model.muster, as --save has written them")
      ->type_name("FOLDER");
  app.add_option("--combine", combine, "a version of several models is one: the mean of their answers, or all of them")
      ->check(CLI::IsMember({"mean", "union"}));
  auto* const is_gateway =
      app.add_option("--gateway", gateway.replicas, "serves what these do: splits a request among them, HOST:PORT,...")
          ->type_name("ADDRESSES")
          ->delimiter(',');
  app.add_option("--split", split, "what of a request a replica of --gateway gets")
      ->check(CLI::IsMember({"rows"}))
      ->capture_default_str();
  app.add_option("--replica-timeout", replica_timeout, "after which a replica of --gateway is given up")
      ->type_name("TIME")
      ->capture_default_str();
  app.add_option("--listen", options.listen, "where, HOST:PORT; port 0 is any")
      ->type_name("ADDRESS")
      ->capture_default_str();
  muster::add_number(app, "--max-batch", max_batch, {1, 65536}, "rows that are predicted together, and of a request");
  app.add_option("--max-delay", delay, "how long a request may wait for others while its model is idle")
      ->type_name("TIME")
      ->capture_default_str();
  muster::add_number(app, "--queue", queue, {1, 1'000'000}, "requests that may wait for each model");
  muster::add_number(app, "--max-body", max_body, {1, std::uint64_t{1} << 40, true}, "the largest request");
  muster::add_number(app, "--threads", options.threads, {1, 1024}, "that serve connections");
  muster::add_number(app, "--model-threads", model_threads, {1, 1024}, "that compute a batch of a network");
  app.add_option("--spans", options.spans, "append the spans of requests with headers of a trace, for Zipkin")
      ->type_name("FILE");
  for (const char* const of_replicas :
       {"--combine", "--max-delay", "--queue", "--threads", "--model-threads", "--spans"})
    is_gateway->excludes(app.get_option(of_replicas));
  for (const char* const its : {"--split", "--replica-timeout"}) app.get_option(its)->needs(is_gateway);
  const auto body = [&](muster::context&) {
    examples::parse(app, argc, argv);
    if (models.empty() == gateway.replicas.empty())
      examples::refuse("there is not one thing to serve (of --models and --gateway there have to be one)",
                       "give --models FOLDER or --gateway ADDRESSES");
    if (models.empty()) {
      gateway.listen = options.listen;
      gateway.max_batch = max_batch;
      gateway.max_body = max_body;
      gateway.replica_timeout = read_time("--replica-timeout", replica_timeout);
      served::run_gateway(gateway, [&](int port) {
        std::printf("serving %zu replicas on port %d\n", gateway.replicas.size(), port);
        std::fflush(stdout);
      });
      std::puts("drained");
      return;
    }
    batches = {.max_batch = max_batch, .max_delay = read_time("--max-delay", delay), .queue = queue};
    options.max_body = max_body;
    const auto how = combine.empty()     ? served::combination::none
                     : combine == "mean" ? served::combination::mean
                                         : served::combination::united;
    muster::serve::repository repository(
        models, [&](const std::string& folder) { return served::load(folder, batches.max_batch, model_threads, how); },
        batches);
    muster::serve::server server(repository, options);
    std::printf("serving %s on port %d\n", models.c_str(), int{server.port()});
    std::fflush(stdout);
    server.run();
    std::puts("drained");
  };
  return muster::run_main(argc, argv, body, {.help = [&] { return app.help(); }});
}
