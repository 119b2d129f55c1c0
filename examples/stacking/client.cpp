// The client: invokes the driver once, several times, or at a rate, and records each invocation's duration.
#include <cstdio>
#include <fstream>
#include <thread>

#include <muster/core/log.hpp>

#include "functions.hpp"

namespace stacked {
namespace {

using muster::clock;

/// Invokes the function, and records the microseconds of successful invocations.
class invoker {
 public:
  explicit invoker(const client_options& options)
      : options_(options),
        spans_("invoker", options.zipkin),
        stub_(helloworld::Greeter::NewStub(grpc::CreateChannel(options.address, grpc::InsecureChannelCredentials()))) {}

  std::string say_hello() {
    const auto begin = clock::now();
    const span whole(spans_, "SayHello", span::new_trace(spans_), "CLIENT");
    grpc::ClientContext context;
    pass_on({std::chrono::system_clock::now() +
                 std::chrono::duration_cast<std::chrono::milliseconds>(muster::seconds(options_.timeout)),
             const_cast<span&>(whole)},
            context);
    helloworld::HelloRequest request;
    request.set_name(options_.name);
    helloworld::HelloReply reply;
    const auto status = stub_->SayHello(&context, request, &reply);
    if (!status.ok()) fail(status, options_.address);
    const auto took = std::chrono::duration_cast<std::chrono::microseconds>(clock::now() - begin);
    const std::lock_guard lock(mutex_);
    took_.push_back(took.count());
    return reply.message();
  }

  /// Writes a line for each invocation to FILE, with the achieved rate before the name.
  void write(double reached) const {
    char rate[32];
    std::snprintf(rate, sizeof rate, "rps%.2f_", reached);
    const auto slash = options_.latencies.rfind('/') + 1;  // 0 if there is no slash.
    const std::string path = options_.latencies.substr(0, slash) + rate + options_.latencies.substr(slash);
    std::ofstream file(path);
    for (const auto microseconds : took_) file << microseconds << '\n';
    if (!file.flush()) throw muster::configuration_error(path + " cannot be written; give another -latf");
    std::printf("The measured latencies are saved in %s\n", path.c_str());
  }
  [[nodiscard]] std::size_t completed() const { return took_.size(); }

 private:
  const client_options& options_;
  tracer spans_;
  std::unique_ptr<helloworld::Greeter::Stub> stub_;
  std::mutex mutex_{};
  std::vector<std::int64_t> took_{};
};

}  // namespace

void invoke(const client_options& options) {
  invoker by(options);
  const auto begin = clock::now();
  if (options.rate == 0) {
    for (int k = 0; k < options.invocations; ++k) std::printf("Greeting: %s\n", by.say_hello().c_str());
    if (options.invocations > 1) by.write(options.invocations / muster::seconds_since(begin));
    return;
  }
  std::size_t issued = 0;
  {
    std::vector<std::jthread> calls;
    const muster::seconds gap(1 / options.rate);
    for (; static_cast<double>(issued) * gap.count() < options.seconds; ++issued) {
      std::this_thread::sleep_until(begin +
                                    std::chrono::duration_cast<clock::duration>(static_cast<double>(issued) * gap));
      calls.emplace_back([&by] {
        try {
          by.say_hello();
        } catch (const std::exception& failure) {
          muster::log(muster::log_level::warning, failure.what());
        }
      });
    }
  }
  const double reached = static_cast<double>(by.completed()) / muster::seconds_since(begin);
  std::printf("Issued / completed requests: %zu, %zu\nReal / target RPS: %.2f / %g\n", issued, by.completed(), reached,
              options.rate);
  by.write(reached);
}

}  // namespace stacked
