#pragma once
// The secret that the processes of a run prove to each other at the rendezvous. Nothing prints it, and it is on no
// command line: launchers hand it to their ranks in the environment, which other users cannot read.
//
//   std::string token = token_from_env();                                       // TESSERA_TOKEN
//   if (token.empty() && shared_between_nodes(run, host)) token = make_token(run);   // who hosts; others read_token(run)
#include <filesystem>
#include <string>

namespace tessera::comm {

inline constexpr const char* kTokenVariable = "TESSERA_TOKEN";

/// TESSERA_TOKEN, empty if it is not set. Throws UserError (usage) if it is so short that it could be guessed.
std::string token_from_env();

/// The folder of this process's run, where ranks find the token of a store that rank 0 hosts. Known before the first
/// Comm, by commands that write there; else empty.
void set_token_folder(const std::filesystem::path& run);
const std::filesystem::path& token_folder();

/// The warning of who hosts a store without a token.
void warn_of_open_store(const std::string& host);

/// The kernel's random numbers. Throws UserError (usage) where this process may have none.
std::string random_bytes(size_t count);
/// 256 bits of them, as 64 hexadecimal digits.
std::string random_token();

/// Whether every process of a run whose rendezvous is at `host` sees the same folder `run`: all are on one machine (a
/// loopback address), or the folder is on a network file system. A wrong "no" costs a warning, a wrong "yes" the run.
bool shared_between_nodes(const std::filesystem::path& run, const std::string& host);

/// The token in RUN/.token, which is made where it is not there, for its owner alone (mode 600). Empty where the file
/// would not be secret: a file system without permissions, a file of another user. Throws UserError (disk).
std::string make_token(const std::filesystem::path& run);
/// The same, empty while there is none. For the processes that do not host.
std::string read_token(const std::filesystem::path& run);

}  // namespace tessera::comm
