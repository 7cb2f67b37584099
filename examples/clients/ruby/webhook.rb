# Receives webhooks, verifies them, and prints a line for each new event: ruby webhook.rb ADDRESS:PORT
require "json"
require "openssl"
require "webrick"

KEY = ENV.fetch("SIGNALBOX_SECRET").delete_prefix("whsec_").unpack1("m")
# A delivery has at most `bus.batch_bytes` (1 MiB) of events.
MAX_BODY = 4 << 20

# Whether the body was signed with our key in the last five minutes. The body must be the bytes as received.
def genuine?(request, body)
  sent = request["webhook-timestamp"]
  return false if (Time.now.to_i - sent.to_i).abs > 300
  own = "v1," + [OpenSSL::HMAC.digest("SHA256", KEY, "#{request["webhook-id"]}.#{sent}.#{body}")].pack("m0")
  # While a secret is being replaced, there are several signatures.
  request["webhook-signature"].to_s.split.any? { |one| OpenSSL.secure_compare(own, one) }
end

# A delivery whose answer was lost is repeated. An application stores the ID in the transaction that handles the event, with
# a unique index, instead of in memory.
HANDLED = {}
LOCK = Mutex.new

def handle(event)
  event.fetch("gap", []).each { |gap| puts "missing #{gap.values_at("first", "last", "reason").join(" ")}" }
  return if HANDLED[event["id"]]
  puts "#{event.values_at("id", "topic", "type", "url").join(" ")} #{event["data"].to_json}"
  HANDLED[event["id"]] = true
end

$stdout.sync = true
address, port = ARGV[0].split(":")
server = WEBrick::HTTPServer.new(BindAddress: address, Port: Integer(port), AccessLog: [])
server.mount_proc("/") do |request, response|
  next response.status = 413 if request.content_length > MAX_BODY
  body = request.body.to_s
  next response.status = 401 unless genuine?(request, body)
  LOCK.synchronize { JSON.parse(body).each { |event| handle(event) } }
  # Answered after the events were handled: if this program fails before, the delivery is repeated.
  response.status = 204
end
trap("TERM") { server.shutdown }
server.start
