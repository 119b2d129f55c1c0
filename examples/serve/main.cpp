// Serves models that the examples have saved (docs/serving.md).
//
//   build/release/examples/serve --models models --listen 127.0.0.1:8000
//   build/release/examples/serve --gateway 127.0.0.1:8001,127.0.0.1:8002 --split rows --listen 127.0.0.1:8000
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

#include <muster/muster.hpp>
#include <muster/serve/server.hpp>

#include "../command_line.hpp"
#include "gateway.hpp"
#include "models.hpp"
#include "remote_models.hpp"

namespace {

/// Reads a time such as "0us", "2ms" or "1s".
muster::seconds read_time(std::string_view name, std::string_view text) {
  for (const auto& unit : {std::pair("us", 1e-6), std::pair("ms", 1e-3), std::pair("s", 1.0)}) {
    if (!text.ends_with(unit.first)) continue;
    const auto number = muster::parse_number<double>(text.substr(0, text.size() - std::string_view(unit.first).size()));
    if (number && *number >= 0) return muster::seconds(*number * unit.second);
  }
  examples::refuse(std::string(name) + " cannot be '" + std::string(text) + "' (it is not a time)",
                   "write for example 0us, 2ms or 1s");
}

}  // namespace

int main(int argc, char** argv) {
  std::string models, combine, split = "rows", delay = "0us", replica_timeout = "10s", poll = "10s";
  served::gateway_options gateway;
  muster::serve::server_options options;
  muster::serve::batch_options batches;
  int model_threads = 1;
  std::uint64_t max_batch = batches.max_batch, queue = batches.queue, max_body = options.max_body;
  CLI::App app{"Serves models that programs of the examples have saved, by the Open Inference Protocol.", "serve"};
  app.set_help_flag();  // run_main provides --help
  app.add_option("--models", models,
                 "FOLDER/<model>/<version>/model.muster or .safetensors, as --save has written them; also at an "
                 "address https://..., http://... or s3://...")
      ->type_name("FOLDER");
  app.add_option("--poll", poll, "time after which versions at an address are compared with those that are served")
      ->type_name("TIME")
      ->capture_default_str();
  app.add_option("--combine", combine, "combine the models of a version: mean of their outputs, or all outputs")
      ->check(CLI::IsMember({"mean", "union"}));
  auto* const is_gateway =
      app.add_option("--gateway", gateway.replicas, "split requests among these replicas, HOST:PORT,...")
          ->type_name("ADDRESSES")
          ->delimiter(',');
  app.add_option("--split", split, "the part of a request that each replica of --gateway gets")
      ->check(CLI::IsMember({"rows"}))
      ->capture_default_str();
  app.add_option("--replica-timeout", replica_timeout, "time limit for a reply of a replica of --gateway")
      ->type_name("TIME")
      ->capture_default_str();
  app.add_option("--listen", options.listen, "address of the server, HOST:PORT; port 0 is any")
      ->type_name("ADDRESS")
      ->capture_default_str();
  muster::add_number(app, "--max-batch", max_batch, {1, 65536}, "largest number of rows in a batch, and in a request");
  app.add_option("--max-delay", delay, "longest time that a request waits for others while its model is idle")
      ->type_name("TIME")
      ->capture_default_str();
  muster::add_number(app, "--queue", queue, {1, 1'000'000}, "largest number of requests that wait for each model");
  muster::add_number(app, "--max-body", max_body, {1, std::uint64_t{1} << 40, true}, "size of the largest request");
  muster::add_number(app, "--threads", options.threads, {1, 1024}, "number of threads for connections");
  muster::add_number(app, "--model-threads", model_threads, {1, 1024}, "number of threads for a batch of a network");
  app.add_option("--spans", options.spans, "append the spans of traced requests, for Zipkin")->type_name("FILE");
  for (const char* const model_option :
       {"--combine", "--max-delay", "--queue", "--threads", "--model-threads", "--spans", "--poll"})
    is_gateway->excludes(app.get_option(model_option));
  for (const char* const gateway_option : {"--split", "--replica-timeout"})
    app.get_option(gateway_option)->needs(is_gateway);
  const auto body = [&](muster::context&) {
    examples::parse(app, argc, argv);
    if (models.empty() == gateway.replicas.empty())
      examples::refuse("it is not clear what to serve (exactly one of --models and --gateway is required)",
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
    const auto mode = combine.empty()     ? served::combination::none
                      : combine == "mean" ? served::combination::mean
                                          : served::combination::united;
    std::optional<served::remote_models> copies;
    if (models.find("://") != std::string::npos) copies.emplace(models, read_time("--poll", poll));
    muster::serve::repository repository(
        copies ? copies->folder() : models,
        [&](const std::string& folder) { return served::load(folder, batches.max_batch, model_threads, mode); },
        batches);
    muster::serve::server server(repository, options);
    std::printf("serving %s on port %d\n", muster::detail::without_secrets(models).c_str(), int{server.port()});
    std::fflush(stdout);
    server.run();
    std::puts("drained");
  };
  return muster::run_main(argc, argv, body, {.help = [&] { return app.help(); }});
}
