#include <csignal>
#include <cstdio>
#include <string>

#include "base/log.h"
#include "base/str.h"
#include "cli/commands.h"
#include "cli/json.h"
#include "net/address.h"
#include "registry/server.h"

namespace moonpool::cli {
namespace {

Result<net::HostPort> ListenAddress(const std::string& text) {
  // ":8080" is every address of the machine.
  MOONPOOL_ASSIGN_OR_RETURN(net::HostPort listen,
                            net::ParseHostPort(text.starts_with(':') ? "0.0.0.0" + text : text));
  if (text.starts_with(':')) listen.host.clear();
  return listen;
}

void Announce(const net::HostPort& address, bool as_json) {
  if (as_json) {
    Json json;
    json.Open('{').Key("url").Text("http://" + address.ToString()).Close('}');
    std::puts(json.str().c_str());
  } else {
    std::printf("registry at http://%s\n", address.ToString().c_str());
  }
  std::fflush(stdout);
}

Status Serve(const RegistryArguments& arguments) {
  MOONPOOL_ASSIGN_OR_RETURN(const net::HostPort listen, ListenAddress(arguments.listen));
  // Held back on this thread and those that it makes, and taken below.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  SystemClock clock;
  Logger log;
  registry::ServerOptions options;
  options.bind_host = listen.host;
  options.port = listen.port;
  MOONPOOL_ASSIGN_OR_RETURN(const auto server, registry::Server::Create(clock, &log, options));
  MOONPOOL_RETURN_IF_ERROR(server->Start());
  Announce({listen.host.empty() ? "0.0.0.0" : listen.host, server->port()}, arguments.json);
  int signal = 0;
  sigwait(&signals, &signal);
  server->Close();
  return Status::Ok();
}

}  // namespace

int RunRegistry(const RegistryArguments& arguments) {
  const Status status = Serve(arguments);
  if (status.ok()) return kOk;
  std::fprintf(stderr, "moonpool registry: %s\n", status.ToString().c_str());
  return kFailed;
}

}  // namespace moonpool::cli
