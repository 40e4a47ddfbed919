// Copies what the packages of all languages share.
import { copyFileSync, existsSync, readFileSync, rmSync, writeFileSync } from 'node:fs'

const at = (path) => new URL(path, import.meta.url)
rmSync(at('dist'), { recursive: true, force: true })
if (existsSync(at('../go/publish/write.lua'))) {
  const script = readFileSync(at('../go/publish/write.lua'), 'utf8')
  writeFileSync(at('src/script.ts'), `export const script: string = ${JSON.stringify(script)}\n`)
}
if (existsSync(at('../../LICENSE'))) copyFileSync(at('../../LICENSE'), at('LICENSE'))
