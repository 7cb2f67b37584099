# Publishes one event and prints its ID: ruby publish.rb TOPIC KEY EVENT
#
# KEY names the operation, for example order-7-paid. Every attempt carries it, so the event is not published twice if the
# response to the first attempt was lost.
require "net/http"

URL = ENV.fetch("SIGNALBOX_URL", "http://127.0.0.1:8081")
TOKEN = ENV.fetch("SIGNALBOX_TOKEN")
ATTEMPTS = 9

def post(topic, key, event)
  uri = URI("#{URL}/topics/#{topic}")
  headers = {"Authorization" => "Bearer #{TOKEN}", "Content-Type" => "application/json", "Idempotency-Key" => key}
  limits = {use_ssl: uri.scheme == "https", open_timeout: 10, read_timeout: 10, max_retries: 0}
  Net::HTTP.start(uri.host, uri.port, **limits) { |http| http.post(uri.path, event, headers) }
end

def publish(topic, key, event)
  failure = nil
  ATTEMPTS.times do |attempt|
    pause = rand(0.5..1.0) * 2**attempt
    begin
      answer = post(topic, key, event)
      return answer["X-Signalbox-Event-Id"] if answer.code == "200"
      failure = answer.body
      # Other errors stay the same if the request is repeated.
      break unless %w[408 429 500 502 503 504].include?(answer.code)
      pause = Float(answer["Retry-After"] || pause)
    rescue IOError, SystemCallError, Timeout::Error, SocketError, Net::ProtocolError => error
      # The event may have been accepted; the key makes the repetition safe.
      failure = error.message
    end
    sleep pause
  end
  abort failure
end

puts publish(*ARGV)
