#include "rpc.hpp"

namespace stacked {

std::optional<muster::trace_place> place_of(const grpc::ServerContext& context, tracer& of) {
  const auto& headers = context.client_metadata();
  bool is_told = false;
  const auto found = muster::read_trace_place([&](const char* name) -> std::string_view {
    const auto at = headers.find(name);
    if (at == headers.end()) return {};
    is_told = true;
    return {at->second.data(), at->second.size()};
  });
  return found || is_told ? found : span::new_trace(of);
}

void pass_on(const call& of, grpc::ClientContext& context) {
  context.set_deadline(of.until);
  const auto& place = of.in.place();
  if (!place && of.in.is_on()) context.AddMetadata("b3", "0");  // The called process does not record the call either.
  if (!place) return;
  const bool is_w3c = place->trace.size() == 32;  // Only B3 has identities of 64 bits.
  if (is_w3c) context.AddMetadata("traceparent", "00-" + place->trace + "-" + place->span + "-01");
  context.AddMetadata("b3", place->trace + "-" + place->span + "-1");
}

grpc::Status status_of(std::exception_ptr failure) {
  using enum grpc::StatusCode;
  const std::string text = muster::describe(failure);
  switch (static_cast<muster::error_kind>(muster::exit_status_of(failure))) {
    case muster::error_kind::configuration:
      return {FAILED_PRECONDITION, text};
    case muster::error_kind::data:
      return {DATA_LOSS, text};
    case muster::error_kind::timeout:
      return {DEADLINE_EXCEEDED, text};
    case muster::error_kind::peer_failure:
      return {ABORTED, text};
    default:
      return {INTERNAL, text};
  }
}

void fail(const grpc::Status& status, const std::string& address) {
  using enum grpc::StatusCode;
  const std::string text = address + ": " + status.error_message();
  switch (status.error_code()) {
    case FAILED_PRECONDITION:
      throw muster::configuration_error(text);
    case DATA_LOSS:
      throw muster::error(muster::error_kind::data, text);
    case DEADLINE_EXCEEDED:
      throw muster::timeout_error("call", {}, text + "; check that it works, or give more time");
    case UNAVAILABLE:
      throw muster::peer_failure({}, text + "; check that it runs");
    case ABORTED:
      throw muster::peer_failure({}, text);
    default:
      throw muster::error(muster::error_kind::other, text);
  }
}

}  // namespace stacked
