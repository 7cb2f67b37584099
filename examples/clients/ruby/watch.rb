# Watches the events of a topic as they are accepted, and prints a line of JSON for each: ruby watch.rb TOPIC POSITION_FILE
#
# The position is stored after each event, so the next start continues where this one ended.
require "net/http"

URL = ENV.fetch("SIGNALBOX_URL", "http://127.0.0.1:8081")
TOKEN = ENV.fetch("SIGNALBOX_TOKEN")
TOPIC, POSITION = ARGV

# Yields server-sent events. A message may have only an ID: then no event matched for a while.
def messages(answer)
  text, message = "", {}
  answer.read_body do |part|
    text << part
    while (line = text.slice!(/\A.*\n/))
      name, value = line.chomp.split(": ", 2)
      if name && !name.empty?
        message[name] = value
      else
        yield message
        message = {}
      end
    end
  end
end

def show(message)
  abort "the token was revoked" if message["event"] == "end" && message["data"].include?("token_revoked")
  warn "these events are no longer in the log: #{message["data"]}" if message["event"] == "gap"
  puts message["data"] if message["data"] && !message["event"]
  return unless message["id"]
  File.write("#{POSITION}.new", message["id"])
  File.rename("#{POSITION}.new", POSITION)
end

def connect
  uri = URI("#{URL}/events?topic=#{TOPIC}")
  request = Net::HTTP::Get.new(uri, {"Authorization" => "Bearer #{TOKEN}"})
  request["Last-Event-ID"] = File.read(POSITION) if File.exist?(POSITION)
  # A stream without events sends a comment every 15 seconds.
  Net::HTTP.start(uri.host, uri.port, use_ssl: uri.scheme == "https", open_timeout: 10, read_timeout: 45, max_retries: 0) do |http|
    http.request(request) do |answer|
      # Other errors stay the same if the request is repeated.
      abort answer.read_body if answer.code.start_with?("4") && answer.code != "429"
      messages(answer) { |message| show(message) } if answer.code == "200"
    end
  end
rescue IOError, SystemCallError, Timeout::Error, SocketError, Net::ProtocolError
  nil
end

$stdout.sync = true
loop do
  connect
  sleep 1
end
