// An HTTP client for tests, which can also send malformed requests.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

namespace served {

struct http_answer {
  int status = 0;
  std::string headers;  ///< headers, including the status line
  std::string body;
  [[nodiscard]] bool closes() const { return headers.find("Connection: close") != std::string::npos; }
};

class http_client {
 public:
  /// Connects to a local port. Throws std::runtime_error if no process listens.
  explicit http_client(std::uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
      ::close(socket_);
      throw std::runtime_error("not connected");
    }
  }
  http_client(const http_client&) = delete;
  ~http_client() { ::close(socket_); }

  /// Sends bytes. Returns false if the server has closed the connection.
  bool send(std::string_view text) {
    while (!text.empty()) {
      const auto sent = ::send(socket_, text.data(), text.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      text.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }

  /// Returns the next reply, or nothing if the connection ends before a complete reply.
  std::optional<http_answer> receive() {
    std::size_t end = 0;
    while ((end = text_.find("\r\n\r\n")) == std::string::npos) {
      if (!more()) return std::nullopt;
    }
    http_answer reply;
    reply.headers = text_.substr(0, end + 2);
    reply.status = std::stoi(reply.headers.substr(9, 3));
    const auto at = reply.headers.find("Content-Length: ");
    const std::size_t size = at == std::string::npos ? 0 : std::stoul(reply.headers.substr(at + 16));
    text_.erase(0, end + 4);
    while (text_.size() < size) {
      if (!more()) return std::nullopt;
    }
    reply.body = text_.substr(0, size);
    text_.erase(0, size);
    return reply;
  }
  /// Waits until the server closes the connection or sends bytes. Returns true if the server has closed it.
  bool is_closed() { return text_.empty() && !more(); }

  std::optional<http_answer> ask(std::string_view text) {
    send(text);  // the server may reply before it has received the whole request
    return receive();
  }

 private:
  bool more() {
    char bytes[4096];
    const auto count = ::recv(socket_, bytes, sizeof bytes, 0);
    if (count <= 0) return false;
    text_.append(bytes, static_cast<std::size_t>(count));
    return true;
  }

  int socket_;
  std::string text_;
};

inline std::string get(const std::string& path) { return "GET " + path + " HTTP/1.1\r\nHost: a\r\n\r\n"; }
inline std::string post(const std::string& path, const std::string& body, const std::string& headers = "") {
  return "POST " + path + " HTTP/1.1\r\nHost: a\r\n" + headers + "Content-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + body;
}

}  // namespace served
