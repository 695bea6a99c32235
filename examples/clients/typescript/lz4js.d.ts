declare module "lz4js" {
  export function decompress(frame: Uint8Array, maxSize: number): Uint8Array;
}
