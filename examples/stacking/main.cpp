// A stacked ensemble trained by four functions (docs/stacking.md).
//
//   stacking --function trainer -sp 50052 &
//   stacking --function driver -sp 50051 -tAddr localhost:50052 -rAddr localhost:50053 -mAddr localhost:50054
//   stacking --function client -addr localhost:50051
#include <string>
#include <vector>

#include <muster/muster.hpp>

#include "../command_line.hpp"
#include "functions.hpp"

namespace {

/// Sets `to` to the value of an environment variable, if it is set.
template <class T>
void read_variable(const char* name, T& to, const muster::number_range<T>& range) {
  if (const auto text = muster::environment(name)) to = muster::number_from(name, *text, range);
}

bool is_on(const char* name) {
  const std::string text = muster::environment(name).value_or("false");
  for (const char* word : {"true", "True", "yes", "on", "1"})
    if (text == word) return true;
  for (const char* word : {"false", "False", "no", "off", "0"})
    if (text == word) return false;
  examples::refuse(std::string(name) + " cannot be '" + text + "' (it is true or false)", "use true or false");
}

/// Replaces flags such as -tAddr by --tAddr.
std::vector<std::string> with_two_dashes(int argc, char** argv) {
  std::vector<std::string> words(argv, argv + argc);
  for (auto& word : words)
    if (word.size() > 2 && word[0] == '-' && word[1] != '-' &&
        std::string_view("0123456789.").find(word[1]) == std::string_view::npos)
      word.insert(0, "-");
  return words;
}

}  // namespace

int main(int argc, char** argv) {
  auto words = with_two_dashes(argc, argv);
  std::vector<char*> pointers;
  for (auto& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  stacked::function_options options;
  stacked::client_options client;
  options.zipkin = "http://localhost:9411/api/v2/spans";
  options.trainer_addresses = {"localhost:50052"};
  options.reducer_address = "localhost:50053";
  options.metatrainer_address = "localhost:50054";
  options.data = "stacking.npy";
  options.models = {"LinearSVR", "Lasso", "RandomForestRegressor", "KNeighborsRegressor"};
  CLI::App app{
      "Trains a stacked ensemble by functions: a driver, trainers, a reducer and a meta-trainer.\n"
      "Variables: TRANSFER_TYPE (INLINE, S3, REDIS, XDT), BUCKET_NAME, AWS_ACCESS_KEY, AWS_SECRET_KEY,\n"
      "AWS_REGION, AWS_ENDPOINT_URL, TrainersNum, CONCURRENT_TRAINING, ENABLE_TRACING.",
      "stacking"};
  app.set_help_flag();  // run_main handles --help.
  app.add_option("--function", options.name, "driver, trainer, reducer, metatrainer; or client")
      ->required()
      ->check(CLI::IsMember({"driver", "trainer", "reducer", "metatrainer", "client"}));
  app.add_option("--listen", options.listen, "address to listen on; [::] accepts clients from all interfaces")
      ->type_name("ADDRESS")
      ->capture_default_str();
  muster::add_number(app, "--sp", options.port, {0, 65535}, "the port to serve at; 0 is any");
  app.add_option("--zipkin", options.zipkin, "collector of spans if ENABLE_TRACING is true")->capture_default_str();
  app.add_option("--tAddr", options.trainer_addresses,
                 "addresses of the trainers: an address for each trainer, or a common address")
      ->type_name("ADDRESSES")
      ->delimiter(',');
  app.add_option("--rAddr", options.reducer_address, "address of the reducer")->capture_default_str();
  app.add_option("--mAddr", options.metatrainer_address, "address of the meta-trainer")->capture_default_str();
  muster::add_number(
      app, "--trainersNum", options.trainers, {0, 4096},
      "number of models to train, if TrainersNum is not set; for a trainer, the number of trainer instances");
  app.add_option("--models", options.models, "models that the trainers fit in turn, by their names in scikit-learn")
      ->type_name("NAMES")
      ->delimiter(',');
  app.add_option("--data", options.data, "data set of the driver, written by make_data.py")
      ->type_name("FILE")
      ->capture_default_str();
  app.add_option("--addr", client.address, "address that a client calls")->capture_default_str();
  app.add_option("--name", client.name, "name that a client sends")->capture_default_str();
  muster::add_number(app, "--invocations", client.invocations, {1, 1'000'000},
                     "number of invocations of a client, one after the other");
  muster::add_number(app, "--rps", client.rate, {0, 1e6},
                     "rate of a client's invocations per second, for --time seconds");
  muster::add_number(app, "--time", client.seconds, {0, 1e6}, "seconds of --rps");
  muster::add_number(app, "--grpcTimeout", client.timeout, {0.001, 1e6}, "of a client: seconds of an invocation");
  app.add_option("--latf", client.latencies,
                 "file of a client's latencies: a line with the microseconds of each invocation")
      ->type_name("FILE")
      ->capture_default_str();
  int count = static_cast<int>(words.size());
  char** const all = pointers.data();
  const auto body = [&](muster::context& ranks) {
    examples::parse(app, count, all);
    options.transfer = muster::environment("TRANSFER_TYPE").value_or(options.transfer);
    if (options.transfer != "INLINE" && options.transfer != "S3" && options.transfer != "REDIS" &&
        options.transfer != "XDT")
      examples::refuse("TRANSFER_TYPE cannot be '" + options.transfer + "' (it is INLINE, S3, REDIS or XDT)",
                       "use a listed value");
    options.bucket = muster::environment("BUCKET_NAME").value_or(options.bucket);
    read_variable("TrainersNum", options.trainers, {1, 4096});
    if (options.name == "driver" && options.trainers == 0) options.trainers = 4;
    options.concurrent = is_on("CONCURRENT_TRAINING");
    if (!is_on("ENABLE_TRACING")) options.zipkin.clear();
    client.zipkin = options.zipkin;
    if (options.name == "client") {
      stacked::invoke(client);
    } else {
      stacked::serve(options, ranks);
    }
  };
  return muster::run_main(count, all, body, {.help = [&] { return app.help(); }});
}
