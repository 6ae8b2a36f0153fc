// SPDX-License-Identifier: Apache-2.0
// A process that holds one end of the road, and executes rank 0's requests.
#include "mpi/road_server.h"

#include <map>
#include <memory>

#include "mpi/wire.h"

namespace driftless::testing {
namespace {

class Server {
 public:
  Server(MPI_Comm comm, const MakeRoadEnds& make) : workers_(comm), make_(make) {}

  // Returns the reply; sets `more` to false after the last request.
  std::string serve(Unpacker in, bool& more) {
    Packer out;
    const auto call = static_cast<Call>(in.number());
    more = call != Call::kQuit;
    if (call < Call::kWrite) {
      send_side(call, in, out);
    } else if (call < Call::kEpoch) {
      file(call, in, out);
    } else if (call < Call::kMakeReceiver) {
      group(call, in, out);
    } else {
      receive_side(call, in, out);
    }
    return out.bytes();
  }

 private:
  static Deadline deadline(Unpacker& in) {
    return Deadline::after(std::chrono::milliseconds(in.number()));
  }
  static PublicationId id(Unpacker& in) {
    const std::uint64_t version = in.number();
    return {version, static_cast<PublicationKind>(in.number())};
  }

  Status make_world(Unpacker& in) {
    RemoteWorldOptions options;
    options.ranks = static_cast<unsigned>(in.number());
    options.patience = std::chrono::milliseconds(in.number());
    options.ring_bytes = in.number();
    options.ring_versions = static_cast<unsigned>(in.number());
    options.directory = in.text();
    DRIFTLESS_ASSIGN_OR_RETURN(ends_, make_(workers_, options));
    return {};
  }

  void end_world() {
    files_.clear();
    receiver_.reset();
    ends_.sender.reset();
    ends_.group.reset();
    ends_ = {};
  }

  void send_side(Call call, Unpacker& in, Packer& out) {
    switch (call) {
      case Call::kMakeWorld: out.status(make_world(in)); break;
      case Call::kEndWorld: end_world(); break;
      case Call::kAnnounce: {
        const std::string text = in.text();
        out.status(ends_.sender->announce(text, deadline(in)));
        break;
      }
      case Call::kBegin: {
        const PublicationId what = id(in);
        out.status(ends_.sender->begin(what, deadline(in)));
        break;
      }
      case Call::kCreatePart: {
        auto made = ends_.sender->create_part(in.text());
        out.status(made.status());
        if (made.ok()) {
          files_[++last_file_] = std::move(*made);
          out.number(last_file_);
        }
        break;
      }
      case Call::kFlush: {
        const auto parts = ends_.sender->flush(deadline(in));
        out.status(parts.status());
        if (parts.ok()) {
          out.number(parts->size());
          for (const PartReceipt& part : *parts) out.receipt(part);
        }
        break;
      }
      case Call::kSeal: {
        const std::string manifest = in.text();
        out.status(ends_.sender->seal(manifest, deadline(in)));
        break;
      }
      case Call::kAbort: out.status(ends_.sender->abort()); break;
      case Call::kPublished: {
        const PublicationId what = id(in);
        const auto there = ends_.sender->published(what, deadline(in));
        const Hash128 manifest = there.ok() ? there->value_or(Hash128()) : Hash128();
        out.status(there.status()).number(there.ok() && there->has_value() ? 1 : 0);
        out.number(manifest.high).number(manifest.low);
        break;
      }
      case Call::kReceivers: {
        const auto all = ends_.sender->receivers();
        out.status(all.status());
        if (!all.ok()) break;
        out.number(all->size());
        for (const ReceiverReport& r : *all) {
          out.text(r.id).number(r.version).text(r.proof).text(r.needs);
        }
        const std::vector<std::string> left = ends_.sender->left();
        out.number(left.size());
        for (const std::string& each : left) out.text(each);
        break;
      }
      case Call::kPrune: {
        const auto removed = ends_.sender->prune(in.number());
        out.status(removed.status());
        if (removed.ok()) out.ids(*removed);
        break;
      }
      case Call::kHighestNumber: {
        const auto highest = ends_.sender->highest_number();
        out.status(highest.status());
        if (highest.ok()) out.number(*highest);
        break;
      }
      default: break;
    }
  }

  void file(Call call, Unpacker& in, Packer& out) {
    const std::uint64_t number = in.number();
    File& file = *files_.at(number);
    if (call == Call::kWrite) {
      const std::uint64_t offset = in.number();
      const std::string bytes = in.text();
      out.status(file.pwrite(offset, std::as_bytes(std::span(bytes))));
    } else if (call == Call::kRead) {
      const std::uint64_t offset = in.number();
      std::string bytes(in.number(), '\0');
      out.status(file.pread(offset, std::as_writable_bytes(std::span(bytes)))).text(bytes);
    } else if (call == Call::kSync) {
      out.status(file.sync());
    } else {
      files_.erase(number);
    }
  }

  void group(Call call, Unpacker& in, Packer& out) {
    if (call == Call::kEpoch) {
      ends_.group->begin_epoch(in.number());
      return;
    }
    const std::string message = in.text();
    if (call == Call::kGather) {
      const auto all = ends_.group->gather(message, deadline(in));
      out.status(all.status());
      if (!all.ok()) return;
      out.number(all->size());
      for (const std::string& text : *all) out.text(text);
      return;
    }
    const auto received = ends_.group->broadcast(message, deadline(in));
    out.status(received.status()).text(received.ok() ? *received : "");
  }

  void fetch_ranges(Unpacker& in, Packer& out) {
    const PublicationId what = id(in);
    const PartReceipt part = in.receipt();
    std::vector<ByteRange> ranges(in.number());
    for (ByteRange& range : ranges) {
      range.offset = in.number();
      range.size_bytes = in.number();
    }
    const auto got = receiver_->fetch_ranges(what, part, ranges, deadline(in));
    out.status(got.status());
    if (!got.ok()) return;
    out.number(got->size());
    for (const MappedFile& file : *got) {
      const auto bytes = file.bytes();
      out.number(reinterpret_cast<std::uintptr_t>(bytes.data()) % kRangeAlignment);
      out.text({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    }
  }

  void receive_side(Call call, Unpacker& in, Packer& out) {
    switch (call) {
      case Call::kMakeReceiver: {
        auto made = ends_.receiver();
        out.status(made.status());
        if (made.ok()) receiver_ = std::move(*made);
        break;
      }
      case Call::kEndReceiver: receiver_.reset(); break;
      case Call::kRunInfo: {
        const auto info = receiver_->run_info(deadline(in));
        out.status(info.status()).text(info.ok() ? *info : "");
        break;
      }
      case Call::kList: {
        const auto ids = receiver_->list(deadline(in));
        out.status(ids.status());
        if (ids.ok()) out.ids(*ids);
        break;
      }
      case Call::kWaitBeyond: {
        const std::uint64_t version = in.number();
        out.status(receiver_->wait_beyond(version, deadline(in)));
        break;
      }
      case Call::kFetchManifest: {
        const PublicationId what = id(in);
        const auto text = receiver_->fetch_manifest(what, deadline(in));
        out.status(text.status()).text(text.ok() ? *text : "");
        break;
      }
      case Call::kFetchPart: {
        const PublicationId what = id(in);
        const PartReceipt part = in.receipt();
        const auto got = receiver_->fetch_part(what, part, deadline(in));
        out.status(got.status());
        if (!got.ok()) break;
        const auto bytes = got->bytes();
        out.text({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
        break;
      }
      case Call::kFetchRanges: fetch_ranges(in, out); break;
      case Call::kFetchesAtOnce: out.number(receiver_->fetches_at_once() ? 1 : 0); break;
      case Call::kReport: {
        ReceiverReport report;
        report.id = in.text();
        report.version = in.number();
        report.proof = in.text();
        report.needs = in.text();
        out.status(receiver_->report(report, deadline(in)));
        break;
      }
      case Call::kLeave: out.status(receiver_->leave(deadline(in))); break;
      default: break;
    }
  }

  MPI_Comm workers_;
  const MakeRoadEnds& make_;
  RoadEnds ends_;
  std::unique_ptr<ReceiveRoad> receiver_;
  std::map<std::uint64_t, std::unique_ptr<File>> files_;
  std::uint64_t last_file_ = 0;
};

}  // namespace

void serve_road(MPI_Comm calls, MPI_Comm workers, const MakeRoadEnds& make) {
  Server server(workers, make);
  for (bool more = true; more;) {
    const std::string reply = server.serve(Unpacker(receive_bytes(calls, 0, kCallTag)), more);
    send_bytes(calls, 0, kReplyTag, reply);
  }
}

}  // namespace driftless::testing
