// The server of a function.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <csignal>
#include <cstdio>

#include <arpa/inet.h>

#include <muster/core/log.hpp>
#include <muster/core/number.hpp>

#include "functions.hpp"

namespace stacked {
namespace {

using pieces = grpc::ServerReaderWriter<stacking::Piece, stacking::Piece>;

/// A service with one method, for requests in one message and for requests in pieces.
class trainer_service final : public stacking::Trainer::Service {
  auto body_for(const grpc::ServerContext& context) {
    return [&](const stacking::TrainRequest& request, const call& of) {
      const auto& headers = context.client_metadata();
      const auto at = headers.find("trainers-num");
      const std::string announced = at == headers.end() ? "" : std::string(at->second.data(), at->second.size());
      if (options_.trainers > 0 && !announced.empty() && announced != std::to_string(options_.trainers)) {
        throw muster::configuration_error("there are " + std::to_string(options_.trainers) +
                                          " trainer instances (TrainersNum of the driver is " + announced +
                                          "); make them the same");
      }
      return train(request, of, objects_, ranks_);
    };
  }

 public:
  trainer_service(const function_options& options, const transfer& objects, tracer& spans, muster::context& ranks)
      : options_(options), objects_(objects), spans_(spans), ranks_(ranks) {}

  grpc::Status Train(grpc::ServerContext* context, const stacking::TrainRequest* request,
                     stacking::TrainReply* reply) override {
    auto body = body_for(*context);
    return answer(*context, spans_, name, *request, *reply, body);
  }
  grpc::Status TrainStreamed(grpc::ServerContext* context, pieces* stream) override {
    auto body = body_for(*context);
    return answer_streamed<stacking::TrainReply, stacking::TrainRequest>(*context, spans_, name, *stream, body);
  }

 private:
  static constexpr const char* name = "/stacking.Trainer/Train";

  const function_options& options_;
  const transfer& objects_;
  tracer& spans_;
  muster::context& ranks_;
};

class reducer_service final : public stacking::Reducer::Service {
 public:
  reducer_service(const function_options& options, const transfer& objects, tracer& spans)
      : spans_(spans), body_([&](const stacking::ReduceRequest& request, const call& of) {
          return reduce(request, of, objects, options.transfer);
        }) {}

  grpc::Status Reduce(grpc::ServerContext* context, const stacking::ReduceRequest* request,
                      stacking::ReduceReply* reply) override {
    return answer(*context, spans_, name, *request, *reply, body_);
  }
  grpc::Status ReduceStreamed(grpc::ServerContext* context, pieces* stream) override {
    return answer_streamed<stacking::ReduceReply, stacking::ReduceRequest>(*context, spans_, name, *stream, body_);
  }

 private:
  static constexpr const char* name = "/stacking.Reducer/Reduce";
  tracer& spans_;
  std::function<stacking::ReduceReply(const stacking::ReduceRequest&, const call&)> body_;
};

class metatrainer_service final : public stacking::Metatrainer::Service {
 public:
  metatrainer_service(const transfer& objects, tracer& spans, muster::context& ranks)
      : spans_(spans), body_([&](const stacking::MetaTrainRequest& request, const call& of) {
          return train_meta(request, of, objects, ranks);
        }) {}

  grpc::Status Metatrain(grpc::ServerContext* context, const stacking::MetaTrainRequest* request,
                         stacking::MetaTrainReply* reply) override {
    return answer(*context, spans_, name, *request, *reply, body_);
  }
  grpc::Status MetatrainStreamed(grpc::ServerContext* context, pieces* stream) override {
    return answer_streamed<stacking::MetaTrainReply, stacking::MetaTrainRequest>(*context, spans_, name, *stream,
                                                                                 body_);
  }

 private:
  static constexpr const char* name = "/stacking.Metatrainer/Metatrain";
  tracer& spans_;
  std::function<stacking::MetaTrainReply(const stacking::MetaTrainRequest&, const call&)> body_;
};

class driver_service final : public helloworld::Greeter::Service {
 public:
  driver_service(const function_options& options, const transfer& objects, tracer& spans)
      : spans_(spans), driver_(options, objects) {}

  grpc::Status SayHello(grpc::ServerContext* context, const helloworld::HelloRequest* request,
                        helloworld::HelloReply* reply) override {
    const auto body = [&](const helloworld::HelloRequest&, const call& of) {
      helloworld::HelloReply greeting;
      greeting.set_message(driver_.invoke(of));
      return greeting;
    };
    const auto status = answer(*context, spans_, "/helloworld.Greeter/SayHello", *request, *reply, body);
    if (!status.ok()) muster::log(muster::log_level::error, status.error_message());
    return status;
  }

 private:
  tracer& spans_;
  driver driver_;
};

class objects_service final : public stacking::Objects::Service {
 public:
  explicit objects_service(kept_objects& objects) : objects_(objects) {}

  grpc::Status Pull(grpc::ServerContext*, const stacking::ObjectKey* request,
                    grpc::ServerWriter<stacking::Piece>* to) override {
    const auto found = objects_.find(request->key());
    if (found == nullptr) return {grpc::StatusCode::NOT_FOUND, "it does not exist, or has expired"};
    write_pieces(*to, *found);
    return grpc::Status::OK;
  }

 private:
  kept_objects& objects_;
};

/// Limits the resources that clients can use. Idle connections are closed, and calls beyond the limits wait or are
/// rejected.
void bound(grpc::ServerBuilder& builder) {
  constexpr int calls = 64, calls_of_a_connection = 32, idle_milliseconds = 75'000, handshake_milliseconds = 10'000;
  builder.SetResourceQuota(grpc::ResourceQuota().SetMaxThreads(calls));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, calls_of_a_connection);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, idle_milliseconds);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, handshake_milliseconds);
}

/// Returns the address at which other hosts reach this host. Sends no packet.
std::string own_address() {
  const int socket = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(1);
  ::inet_pton(AF_INET, "10.255.255.255", &to.sin_addr);
  socklen_t size = sizeof to;
  const bool is_known = ::connect(socket, reinterpret_cast<const sockaddr*>(&to), size) == 0 &&
                        ::getsockname(socket, reinterpret_cast<sockaddr*>(&to), &size) == 0;
  ::close(socket);
  char text[INET_ADDRSTRLEN] = "127.0.0.1";
  if (is_known) ::inet_ntop(AF_INET, &to.sin_addr, text, sizeof text);
  return text;
}

}  // namespace

void serve(const function_options& options, muster::context& ranks) {
  sigset_t ends;
  ::sigemptyset(&ends);
  ::sigaddset(&ends, SIGTERM);
  ::sigaddset(&ends, SIGINT);
  ::pthread_sigmask(SIG_BLOCK, &ends, nullptr);  // Called before any thread starts.
  std::signal(SIGPIPE, SIG_IGN);                 // hiredis writes to a connection that the server may have closed.

  const auto kept = std::make_shared<kept_objects>();
  std::shared_ptr<store> by;
  if (options.transfer == "S3") by = make_s3_store(options.bucket);
  if (options.transfer == "REDIS") by = make_redis_store(options.bucket);
  if (options.transfer == "XDT") by = kept;
  const transfer objects(by);
  tracer spans(options.name, options.zipkin);

  std::unique_ptr<grpc::Service> service;
  if (options.name == "driver") service = std::make_unique<driver_service>(options, objects, spans);
  if (options.name == "trainer") service = std::make_unique<trainer_service>(options, objects, spans, ranks);
  if (options.name == "reducer") service = std::make_unique<reducer_service>(options, objects, spans);
  if (options.name == "metatrainer") service = std::make_unique<metatrainer_service>(objects, spans, ranks);
  objects_service pulls(*kept);
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort(options.listen + ":" + std::to_string(options.port), grpc::InsecureServerCredentials(),
                           &port);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  bound(builder);
  builder.RegisterService(service.get());
  if (options.transfer == "XDT") builder.RegisterService(&pulls);
  const bool is_everywhere = options.listen == "[::]" || options.listen == "0.0.0.0";
  const std::string address = (is_everywhere ? own_address() : options.listen) + ":";
  kept->set_address(address + std::to_string(options.port));  // Calls may arrive at once.
  const auto server = builder.BuildAndStart();
  if (server == nullptr || port == 0) {
    throw muster::configuration_error(
        "port " + std::to_string(options.port) + " of " + options.listen +
        " cannot be opened for listening (it is in use, or not permitted); choose another port with -sp");
  }
  if (options.port == 0) kept->set_address(address + std::to_string(port));
  std::printf("%s listens to port %d\n", options.name.c_str(), port);
  std::fflush(stdout);
  int got = 0;
  ::sigwait(&ends, &got);
  server->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(5));
  server->Wait();
  const auto [sent, dropped] = spans.finish();
  if (spans.is_on()) std::printf("spans: %ju sent, %ju dropped\n", std::uintmax_t{sent}, std::uintmax_t{dropped});
  std::puts("drained");
}

}  // namespace stacked
