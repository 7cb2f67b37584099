-- Appended to every script of this folder, after objects.lua. All keys of objects begin like the first key.
objects.at(string.match(KEYS[1], '^(.*)queued$'))
local reply = main(objects)
objects.finish()
return reply
